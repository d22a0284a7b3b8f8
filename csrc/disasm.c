/* disasm.c: an instruction as text: the row's mnemonic and its format's pattern with the operands
 * filled in.  Also the read-only view of the tables that nicemu.h offers. */
#include "cores.h"
#include "decode.h"

#include <stdio.h>

/* Append to buf as far as it has room. */
struct text {
    char *buf;
    size_t n, len;
};

static void put(struct text *t, const char *s)
{
    for (; *s; s++)
        if (t->len + 1 < t->n)
            t->buf[t->len++] = *s;
    t->buf[t->len] = 0;
}

static void put_number(struct text *t, i64 v)
{
    char s[24];
    snprintf(s, sizeof s, "%lld", (long long)v);
    put(t, s);
}

static void put_hex(struct text *t, u64 v)
{
    char s[24];
    snprintf(s, sizeof s, "0x%llx", (unsigned long long)v);
    put(t, s);
}

static const char x_names[33][5] = {"zero", "ra", "sp", "gp", "tp", "t0",  "t1", "t2", "s0",
                                    "s1",   "a0", "a1", "a2", "a3", "a4",  "a5", "a6", "a7",
                                    "s2",   "s3", "s4", "s5", "s6", "s7",  "s8", "s9", "s10",
                                    "s11",  "t3", "t4", "t5", "t6", "zero"};
static const char f_names[32][5] = {"ft0", "ft1", "ft2",  "ft3",  "ft4", "ft5", "ft6",  "ft7",
                                    "fs0", "fs1", "fa0",  "fa1",  "fa2", "fa3", "fa4",  "fa5",
                                    "fa6", "fa7", "fs2",  "fs3",  "fs4", "fs5", "fs6",  "fs7",
                                    "fs8", "fs9", "fs10", "fs11", "ft8", "ft9", "ft10", "ft11"};

static void put_v(struct text *t, u8 r)
{
    put(t, "v");
    put_number(t, r);
}

static void put_vtype(struct text *t, u64 vtype)
{
    static const char *const sew[] = {"e8", "e16", "e32", "e64"};
    static const char *const lmul[] = {"m1", "m2", "m4", "m8", NULL, "mf8", "mf4", "mf2"};
    if (vtype >> 8 || (vtype >> 3 & 7) > 3 || !lmul[vtype & 7]) {
        put_number(t, (i64)vtype);
        return;
    }
    put(t, sew[vtype >> 3 & 7]);
    put(t, ",");
    put(t, lmul[vtype & 7]);
    put(t, vtype & 0x40 ? ",ta" : ",tu");
    put(t, vtype & 0x80 ? ",ma" : ",mu");
}

static void put_fence(struct text *t, u32 w)
{
    for (int hi = 27; hi >= 23; hi -= 4) {
        static const char letters[] = "iorw";
        for (int i = 0; i < 4; i++)
            if (w >> (hi - i) & 1)
                put(t, (char[]){letters[i], 0});
        if (hi == 27)
            put(t, ", ");
    }
}

static void put_operand(struct text *t, const char *name, const struct op *o, u32 w)
{
    static const char *const modes[] = {"rne", "rtz", "rdn", "rup", "rmm"};
    u32 csr = (u32)o->imm & 0xfff;
    if (!strcmp(name, "rd"))
        put(t, x_names[o->rd]);
    else if (!strcmp(name, "rs1"))
        put(t, x_names[o->rs1]);
    else if (!strcmp(name, "rs2"))
        put(t, x_names[o->rs2]);
    else if (!strcmp(name, "frd"))
        put(t, f_names[o->rd & 31]);
    else if (!strcmp(name, "frs1"))
        put(t, f_names[o->rs1]);
    else if (!strcmp(name, "frs2"))
        put(t, f_names[o->rs2]);
    else if (!strcmp(name, "frs3"))
        put(t, f_names[o->rs3]);
    else if (!strcmp(name, "vd") || !strcmp(name, "vs3"))
        put_v(t, o->rd & 31);
    else if (!strcmp(name, "vs1"))
        put_v(t, o->rs1);
    else if (!strcmp(name, "vs2"))
        put_v(t, o->rs2);
    else if (!strcmp(name, "vm"))
        put(t, o->vm ? "" : ", v0.t");
    else if (!strcmp(name, "imm") || !strcmp(name, "shamt"))
        put_number(t, o->imm);
    else if (!strcmp(name, "uimm"))
        put_number(t, insn_rows[o->id].format == FORMAT_CIW || insn_rows[o->id].format == FORMAT_VU
                          ? o->imm
                          : o->rs1);
    else if (!strcmp(name, "hi20"))
        put_hex(t, insn_len(w) == 4 ? w >> 12 : (u64)(o->imm >> 12) & 0xfffff);
    else if (!strcmp(name, "target"))
        put_hex(t, (u64)o->imm);
    else if (!strcmp(name, "rm")) {
        if (o->rm <= RMM) {
            put(t, ", ");
            put(t, modes[o->rm]);
        }
    } else if (!strcmp(name, "vtype"))
        put_vtype(t, (u64)o->imm);
    else if (!strcmp(name, "fence"))
        put_fence(t, w);
    else if (!strcmp(name, "csr")) {
        if (csr_name(csr))
            put(t, csr_name(csr));
        else
            put_hex(t, csr);
    } else
        put(t, name); /* v0, sp: written out in the pattern */
}

static void put_mnemonic(struct text *t, const char *id)
{
    for (; *id; id++)
        put(t, (char[]){*id == '_' ? '.' : *id, 0});
}

static void disasm(const struct isa *isa, u32 word, u64 pc, char *buf, size_t n)
{
    struct text t = {buf, n, 0};
    struct op o = {0};
    if (!isa_decode(isa, word, pc, &o)) {
        put(&t, insn_len(word) == 2 ? ".half " : ".word ");
        put_hex(&t, insn_len(word) == 2 ? word & 0xffff : word);
        return;
    }
    const struct insn_row *row = &insn_rows[o.id];
    const char *p = format_patterns[row->format];
    /* U-type prints its 20 bits whether or not pc is part of the value */
    put_mnemonic(&t, row->name);
    if (row->cls == CLASS_AMO) {
        put(&t, word >> 26 & 1 ? ".aq" : "");
        put(&t, word >> 25 & 1 ? word >> 26 & 1 ? "rl" : ".rl" : "");
    }
    if (*p)
        put(&t, " ");
    while (*p) {
        char name[12];
        size_t k = 0;
        bool letter = *p >= 'a' && *p <= 'z';
        if (!letter) {
            put(&t, (char[]){*p++, 0});
            continue;
        }
        /* "rm" and "vm" follow another operand without a separator */
        while (((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9')) && k + 1 < sizeof name) {
            bool suffix = (p[0] == 'r' || p[0] == 'v') && p[1] == 'm' && k;
            if (suffix)
                break;
            name[k++] = *p++;
        }
        name[k] = 0;
        put_operand(&t, name, &o, word);
    }
}

/* ---- the tables for Python -------------------------------------------------------------- */

uint32_t nicemu_insn_count(void)
{
    return INSN_COUNT;
}

int nicemu_insn_row(uint32_t i, nicemu_insn *out)
{
#define INSN(id, fmt, match, mask, ext, cls, exec, arg) {#fmt, #exec},
    static const char *const names[INSN_COUNT][2] = {
#include "insn.def"
    };
#undef INSN
    if (i >= INSN_COUNT)
        return NICEMU_EINVAL;
    const struct insn_row *row = &insn_rows[i];
    *out = (nicemu_insn){row->name,
                         names[i][0],
                         format_patterns[row->format],
                         ext_names[row->ext],
                         class_names[row->cls],
                         names[i][1],
                         row->match,
                         row->mask,
                         insn_len(row->match)};
    return NICEMU_OK;
}

const char *nicemu_extension_name(uint32_t i)
{
    return i < EXT_COUNT ? ext_names[i] : NULL;
}

const char *nicemu_class_name(uint32_t i)
{
    return i < CLASS_COUNT ? class_names[i] : NULL;
}

void nicemu_decode(const nicemu_cores *cores, const uint32_t *words, size_t n, int16_t *rows)
{
    for (size_t i = 0; i < n; i++)
        rows[i] = (i16)isa_find(cores->isa, words[i]);
}

int nicemu_disasm(const nicemu_cores *cores, uint32_t word, uint64_t pc, char *buf, size_t n)
{
    if (n == 0)
        return NICEMU_EINVAL;
    disasm(cores->isa, word, pc, buf, n);
    return (int)insn_len(word);
}
