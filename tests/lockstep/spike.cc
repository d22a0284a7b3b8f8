// spike.cc: the oracle process: one Spike hart that runs batches of programs from shared memory.
// Owns: the hart, its RAM, how a program starts, where it ends, what is told about it.  Which programs
// to run, and what to make of a difference, is decided in Python.  The machine is made of a processor
// and this file's own bus, so there are no devices: what is not RAM is an access fault.
//
//   spike ISA VLENB SLOTS STEPS TRACE CSRS BASE:SIZE[,...] SHARED-FILE
//
// SLOTS programs of at most STEPS steps make a batch; the first TRACE of each one's steps are told.
// CSRS: numbers to report, comma separated.  Commands come on stdin as one letter and a count, and
// are answered by one line, as is the start: r N (run the first N slots), c N (see classify),
// n N (see name), q 0.
#include <riscv/disasm.h>
#include <riscv/processor.h>
#include <riscv/mmu.h>
#include <riscv/simif.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <iostream>
#include <sstream>
#include <sys/mman.h>

namespace
{

bool stale_code; // must Spike drop what it has decoded?

struct region {
    reg_t base, size;
    char *host;
};

class bus : public simif_t
{
  public:
    bus(const cfg_t &config, const std::vector<region> &ram) : config(config), ram(ram) {}
    char *addr_to_mem(reg_t addr) override
    {
        for (const region &r : ram)
            if (addr - r.base < r.size)
                return r.host + (addr - r.base);
        return nullptr;
    }
    bool mmio_load(reg_t, size_t, uint8_t *) override { return false; }
    bool mmio_store(reg_t, size_t, const uint8_t *) override { return false; }
    void proc_reset(unsigned) override {}
    const cfg_t &get_cfg() const override { return config; }
    const std::map<size_t, processor_t *> &get_harts() const override { return harts; }
    const char *get_symbol(uint64_t) override { return nullptr; }

    std::map<size_t, processor_t *> harts;

  private:
    const cfg_t &config;
    const std::vector<region> &ram;
};

// Stands before mcause as the trap logic sees it, and tells when a trap is taken.
class trap_spy : public basic_csr_t
{
  public:
    trap_spy(processor_t *p, csr_t_p behind) : basic_csr_t(p, CSR_MCAUSE, 0), behind(behind) {}
    reg_t read() const noexcept override { return behind->read(); }
    bool taken = false;

  protected:
    bool unlogged_write(const reg_t cause) noexcept override
    {
        behind->write(cause);
        taken = true;
        return true;
    }

  private:
    csr_t_p behind;
};

// What Python lays out in the same order.
struct shared {
    char *memory, *memory_out;
    uint64_t *x, *x_out, *f, *f_out;
    char *v, *v_out;
    uint64_t *start; // pc, mode, mstatus, mtvec, mscratch, steps
    uint64_t *end; // pc, mode, steps, reason, retired, traced
    uint64_t *csrs;
    uint32_t *causes; // traps taken, by exception code
    uint32_t *trace;
};

enum reason { END_STEPS = 0, END_TRAP = 1 };
enum { START = 6, END = 6, CAUSES = 16 };

class oracle
{
  public:
    oracle(const char *isa, size_t vlenb, size_t slots, size_t steps, size_t room,
           const std::vector<int> &numbers, std::vector<region> &ram, const char *file)
        : vlenb(vlenb), slots(slots), max_steps(steps), room(room), numbers(numbers), ram(ram),
          port(config, ram)
    {
        config.isa = isa;
        config.priv = "MU";
        config.hartids = {0};
        config.pmpregions = 0;
        config.trigger_count = 0;
        for (region &r : ram)
            memory_bytes += r.size;
        char *block = static_cast<char *>(aligned_alloc(4096, memory_bytes));
        for (region &r : ram) {
            r.host = block;
            block += r.size;
        }
        p.reset(new processor_t(isa, "MU", &config, &port, 0, false, nullptr, std::cerr));
        port.harts[0] = p.get();
        p->VU.vstart_alu = true; // vstart is honoured by every instruction, as in nicemu
        s = p->get_state();
        spy = std::make_shared<trap_spy>(p.get(), s->mcause);
        s->mcause = spy;
        for (auto &[number, csr] : s->csrmap)
            if (number != CSR_MSTATUS && number != CSR_MINSTRET && number != CSR_MCYCLE)
                power_on.emplace_back(csr, csr->read());
        map(file);
    }

    // One line: the numbers of all CSRs that Spike knows.
    void list_csrs()
    {
        for (auto &[number, csr] : s->csrmap)
            printf("%llu ", static_cast<unsigned long long>(number));
        puts("");
    }

    void run(size_t n)
    {
        for (size_t i = 0; i < n; i++)
            run_slot(i);
    }

    // Memory holds n pairs (word, vtype); byte i of memory_out says whether Spike executes word i
    // under that vtype, vl = 4, x registers that point into the second region, and units on.
    void classify(size_t n)
    {
        const uint32_t *pairs = reinterpret_cast<const uint32_t *>(at.memory);
        for (size_t i = 0; i < n; i++) {
            power_up();
            p->VU.set_vl(1, 1, 4, pairs[2 * i + 1]);
            memcpy(ram[0].host, &pairs[2 * i], 4);
            memset(ram[0].host + 4, 0, 4);
            for (int r = 1; r < 32; r++)
                s->XPR.write(r, ram[1].base + 64 * r);
            s->pc = ram[0].base;
            p->step(1);
            at.memory_out[i] = !spy->taken || spy->read() != CAUSE_ILLEGAL_INSTRUCTION;
        }
    }

    // One line: the mnemonics of n words of memory.
    void name(size_t n)
    {
        const uint32_t *words = reinterpret_cast<const uint32_t *>(at.memory);
        for (size_t i = 0; i < n; i++) {
            const disasm_insn_t *found = p->get_disassembler()->lookup(insn_t(words[i]));
            printf("%s ", found ? found->get_name() : "unknown");
        }
        puts("");
    }

  private:
    cfg_t config;
    const size_t vlenb, slots, max_steps, room;
    const std::vector<int> &numbers;
    std::vector<region> &ram;
    bus port;
    size_t memory_bytes = 0;
    std::unique_ptr<processor_t> p;
    state_t *s;
    std::shared_ptr<trap_spy> spy;
    bool misaligned_works = true;
    std::vector<std::pair<csr_t_p, reg_t>> power_on;
    shared at;

    void map(const char *file)
    {
        size_t size = slots * (2 * memory_bytes + 4 * 256 + 64 * vlenb +
                               8 * (START + END + numbers.size()) + 4 * (CAUSES + room));
        int fd = open(file, O_RDWR);
        void *block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd < 0 || block == MAP_FAILED) {
            perror(file);
            exit(1);
        }
        char *next = static_cast<char *>(block);
        auto take = [&](auto *&pointer, size_t bytes) {
            pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(next);
            next += slots * bytes;
        };
        take(at.memory, memory_bytes);
        take(at.memory_out, memory_bytes);
        take(at.x, 256);
        take(at.x_out, 256);
        take(at.f, 256);
        take(at.f_out, 256);
        take(at.v, 32 * vlenb);
        take(at.v_out, 32 * vlenb);
        take(at.start, 8 * START);
        take(at.end, 8 * END);
        take(at.csrs, 8 * numbers.size());
        take(at.causes, 4 * CAUSES);
        take(at.trace, 4 * room);
    }

    // The state after reset, as nicemu_reset leaves it, but with the FP and vector units on: Spike
    // aborts when their CSRs are written while they are off.
    void power_up()
    {
        stale_code = true; // the memory is another
        p->set_privilege(PRV_M, false);
        s->mstatus->write(MSTATUS_FS | MSTATUS_VS);
        p->VU.set_vl(1, 1, 0, reg_t(1) << 63);
        for (auto &[csr, value] : power_on)
            if (csr->read() != value)
                csr->write(value);
        for (auto &counter : {s->minstret, s->mcycle}) {
            counter->bump(0); // a written counter skips one bump, and asserts when written twice
            counter->write(0);
            counter->bump(0);
        }
        p->get_mmu()->yield_load_reservation();
        p->clear_waiting_for_interrupt();
        spy->taken = false;
    }

    // What must be known of the next instruction before Spike takes a step.
    // Unprivileged manual, "A": a misaligned atomic may raise an address-misaligned exception, which is
    // nicemu's choice; Spike makes it depend on Zicclsm, as it does for plain loads and stores.
    void prepare_step()
    {
        uint32_t word = 0;
        const char *code = port.addr_to_mem(s->pc);
        if (code && port.addr_to_mem(s->pc + 3))
            memcpy(&word, code, 4);
        stale_code |= (word & 0x707f) == 0x100f; // FENCE.I
        reg_t size = reg_t(1) << (word >> 12 & 7);
        bool atomic = (word & 0x7f) == 0x2f && s->XPR[word >> 15 & 31] & (size - 1);
        if (atomic == misaligned_works)
            p->set_extension_enable(EXT_ZICCLSM, misaligned_works = !atomic);
    }

    // What is told about a step before it is made; see coverage.py.
    uint32_t where() const
    {
        reg_t halfword = (s->pc - ram[0].base) >> 1, vtype = p->VU.vtype->read();
        reg_t vstart = p->VU.vstart->read();
        return uint32_t(std::min<reg_t>(halfword, 0x1fff)) | uint32_t(vtype & 63) << 13 |
               uint32_t(vtype >> 63) << 19 | uint32_t(s->frm->read()) << 20 |
               uint32_t(s->prv == PRV_M) << 24 | uint32_t(vstart != 0) << 25 |
               uint32_t(vstart < p->VU.vl->read()) << 26;
    }

    void run_slot(size_t i)
    {
        const uint64_t *start = at.start + i * START;
        power_up();
        memcpy(ram[0].host, at.memory + i * memory_bytes, memory_bytes);
        for (int r = 1; r < 32; r++)
            s->XPR.write(r, at.x[32 * i + r]);
        for (int r = 0; r < 32; r++)
            s->FPR.write(r, freg_t{at.f[32 * i + r], UINT64_MAX}); // boxed to Spike's 128 bits
        memcpy(p->VU.reg_file, at.v + i * 32 * vlenb, 32 * vlenb);
        s->mstatus->write(start[2]);
        s->mtvec->write(start[3]);
        p->put_csr(CSR_MSCRATCH, start[4]);
        p->set_privilege(start[1], false);
        s->pc = start[0];
        size_t limit = std::min<size_t>(start[5], max_steps), steps = 0, retired = 0;
        size_t traced = 0;
        uint32_t *causes = at.causes + i * CAUSES;
        memset(causes, 0, 4 * CAUSES);
        reason why = END_STEPS;
        uint32_t *trace = at.trace + i * room;
        while (steps < limit && why == END_STEPS) {
            prepare_step();
            bool own = !start[3] || s->pc < start[3] || s->pc >= ram[0].base + ram[0].size;
            bool told = own && traced < room; // the trap handler's steps are not told
            uint32_t entry = told ? where() : 0;
            spy->taken = false;
            p->step(1);
            p->clear_waiting_for_interrupt(); // WFI may complete at any time
            if (spy->taken && !port.addr_to_mem(s->mtvec->read() & ~reg_t(3)))
                why = END_TRAP; // a trap that nothing handles ends the run
            if (told)
                trace[traced++] = entry | uint32_t(spy->taken) << 23;
            steps++;
            retired += !spy->taken;
            causes[spy->read() % CAUSES] += spy->taken;
        }
        memcpy(at.memory_out + i * memory_bytes, ram[0].host, memory_bytes);
        for (int r = 0; r < 32; r++) {
            at.x_out[32 * i + r] = s->XPR[r];
            at.f_out[32 * i + r] = s->FPR[r].v[0];
        }
        memcpy(at.v_out + i * 32 * vlenb, p->VU.reg_file, 32 * vlenb);
        uint64_t *end = at.end + i * END;
        end[0] = s->pc;
        end[1] = s->prv;
        end[2] = steps;
        end[3] = why;
        end[4] = retired;
        end[5] = traced;
        for (size_t k = 0; k < numbers.size(); k++)
            at.csrs[i * numbers.size() + k] = p->get_csr(numbers[k]);
    }
};

} // namespace

// In the place of Spike's own, which it calls at every privilege change, where all that it has
// decoded is still good without address translation: half of its time in programs that trap.
void mmu_t::flush_icache()
{
    if (!stale_code)
        return;
    for (icache_entry_t &entry : icache)
        entry.tag = -1;
    stale_code = false;
}

int main(int argc, char **argv)
{
    if (argc != 9)
        return 2;
    std::vector<int> numbers;
    std::vector<region> ram;
    std::string item;
    for (std::istringstream list(argv[6]); std::getline(list, item, ',');)
        numbers.push_back(std::stoi(item));
    for (std::istringstream list(argv[7]); std::getline(list, item, ',');) {
        size_t colon = item.find(':');
        ram.push_back({std::stoull(item), std::stoull(item.substr(colon + 1)), nullptr});
    }
    oracle spike(argv[1], std::stoul(argv[2]), std::stoul(argv[3]), std::stoul(argv[4]),
                 std::stoul(argv[5]), numbers, ram, argv[8]);
    char command;
    unsigned long n;
    spike.list_csrs();
    fflush(stdout);
    while (scanf(" %c %lu", &command, &n) == 2 && command != 'q') {
        if (command == 'r')
            spike.run(n);
        else if (command == 'c')
            spike.classify(n);
        else
            spike.name(n);
        if (command != 'n')
            puts("done");
        fflush(stdout);
    }
    _Exit(0);
}
