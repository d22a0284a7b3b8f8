"""Only what pyproject.toml cannot say: the cffi module and its stable-ABI wheel tag."""

from setuptools import setup

setup(
    cffi_modules=["csrc/ffi.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
