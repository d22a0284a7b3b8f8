"""References: slow or simple, exact, and sharing nothing with the core or the compiler.

Owns: the second answer that the emulated cores are held against.  Nothing in here may import
``nicemu._core``, ``nicemu.device.nic``, ``nicemu.device.image`` or ``nicemu.compiler.compile``.
"""
