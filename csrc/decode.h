/* decode.h: from an instruction word to a row of insn.def and to an op.
 * Owns: the row table, the index over it, operand extraction. */
#ifndef NICEMU_DECODE_H
#define NICEMU_DECODE_H

#include "hart.h"

struct insn_row {
    const char *name;
    op_fn fn;
    u32 match, mask;
    u8 format, ext, cls;
    u16 arg;
};

extern const struct insn_row insn_rows[INSN_COUNT];
extern const char *const format_patterns[FORMAT_COUNT];
extern const char *const ext_names[EXT_COUNT];
extern const char *const class_names[CLASS_COUNT];

/* The rows of the enabled extensions, by the bits that tell opcodes apart; in each bucket the
 * most specific row comes first.  Built once per nicemu_cores, then only read. */
struct isa {
    u64 extensions;
    op_fn fn[INSN_COUNT]; /* the rows' bodies, with those replaced that the host does faster */
    u16 start[32 + 256 +
              1]; /* 32 compressed buckets (funct3, quadrant), 256 others (opcode, funct3) */
    u16 rows[INSN_COUNT * 8];
};

u64 isa_extensions(u64 requested); /* closes the set under the derived rows of ext.def */
void isa_build(struct isa *isa, u64 extensions);
/* What addresses of instructions are multiples of. */
static inline u64 isa_ialign(const struct isa *isa)
{
    return isa->extensions >> EXT_C & 1 ? 2 : 4;
}
/* Bytes of the instruction that starts with this halfword. */
static inline unsigned insn_len(u32 word)
{
    return (word & 3) == 3 ? 4 : 2;
}
/* Row number of a word, or -1. Operand rules of the row's format included. */
int isa_find(const struct isa *isa, u32 word);
/* Fill in all of *o but pcoff; false when the word is illegal. */
bool isa_decode(const struct isa *isa, u32 word, u64 pc, struct op *o);

#endif
