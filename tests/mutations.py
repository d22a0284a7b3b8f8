"""``python -m tests.mutations``: the code is broken on purpose, and the named test must fail.

Each row of MUTATIONS changes one place of one source file in a scratch copy of the tree; what was
compiled from the file is compiled again, and the row's test is run there.  A mutation survives when
the test passes, and so does one that does not build, or whose test does not end or is not found:
the exit status is then 1.  Before all that the tests must pass on the copy as it is.

Owns: the table and the command.  The tests belong to the files that they are in.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
#: What the scratch copy consists of.
PARTS = ("csrc", "nicemu", "tests", "pyproject.toml", "setup.py")
TEST_SECONDS = 300
#: After the tree's own flags: compiling takes longer than the tests.
QUICK = ("-O1", "-w")


class Mutation(NamedTuple):
    """`before`, which is in the file once, becomes `after`; `test` (a pytest node) must fail."""

    invariant: int  # of the protocol; 0: none of them
    what: str  # the mistake, in words
    file: str
    before: str
    after: str
    test: str


MUTATIONS: tuple[Mutation, ...] = (
    # ---- the invariants ----
    Mutation(
        1,
        "whoever has arrived may arrive again",
        "csrc/slot.c",
        "if (!(v->arrived >> child & 1))",
        "if (v->state == SLOT_GATHERING || !(v->arrived >> child & 1))",
        "tests/test_slot.py::test_invariant_1_each_contribution_is_added_exactly_once",
    ),
    Mutation(
        1,
        "of a call's payloads only the first counts as merged",
        "csrc/chunk.c",
        "w->version->merged |= ((1ull << g->k) - 1) << g->child;",
        "w->version->merged |= 1ull << g->child;",
        "tests/test_slot.py::test_invariant_1_each_contribution_is_added_exactly_once",
    ),
    Mutation(
        2,
        "one pass over the payloads does not wait for all of them",
        "csrc/chunk.c",
        "w->version->parked != all ||",
        "!w->version->parked ||",
        "tests/test_slot.py::test_invariant_2_one_pass_over_the_payloads_needs_them_all",
    ),
    Mutation(
        2,
        "one pass over the payloads merges all but the last",
        "csrc/chunk.c",
        "struct gathering g = {.k = w->member->children};",
        "struct gathering g = {.k = w->member->children - 1};",
        "tests/test_slot.py::test_invariant_2_one_pass_over_the_payloads_needs_them_all",
    ),
    Mutation(
        2,
        "some contributors are enough for a result",
        "csrc/slot.h",
        "return v->merged == s->expected;",
        "return v->arrived != 0;",
        "tests/test_slot.py::test_invariant_2_a_result_leaves_only_when_all_have_contributed",
    ),
    Mutation(
        2,
        "a late duplicate is merged into the result",
        "csrc/slot.c",
        "if (!(v->arrived >> child & 1))",
        "if (v->state == SLOT_RESULT || !(v->arrived >> child & 1))",
        "tests/test_slot.py::test_invariant_2_a_result_never_changes",
    ),
    Mutation(
        3,
        "a version is reused before the round between has its result",
        "csrc/slot.c",
        "return last->state == SLOT_RESULT && round == last->round + 1;",
        "return round == last->round + 1;",
        "tests/test_slot.py::test_invariant_3_a_version_is_reused_only_when_all_have_its_result",
    ),
    Mutation(
        4,
        "a worker takes any result for the one it waits for",
        "csrc/host.c",
        "if (!wait->busy || !place_same(wait->place, place))",
        "if (!wait->busy)",
        "tests/test_fabric.py::test_invariant_4_all_ranks_get_identical_bytes",
    ),
    Mutation(
        5,
        "rounds are not compared on the way up",
        "csrc/slot.c",
        "if (is_earlier(s, v, round))\n        return SLOT_REFUSE;",
        "if (false)\n        return SLOT_REFUSE;",
        "tests/test_slot.py::test_invariant_5_a_stale_packet_changes_no_state",
    ),
    Mutation(
        6,
        "nobody looks at the number of contributors",
        "csrc/device.c",
        "p->contributors == m->child[p->child].workers;",
        "p->contributors;",
        "tests/test_slot.py::test_invariant_6_in_other_ways",
    ),
    Mutation(
        6,
        "a device takes frames that are for others",
        "csrc/device.c",
        "if (p->dst != d->node)",
        "if (!p->dst)",
        "tests/test_slot.py::test_invariant_6_a_malformed_packet_changes_only_its_counter",
    ),
    Mutation(
        7,
        "children are merged as they arrive",
        "csrc/slot.c",
        "return waiting & before_gap;",
        "return before_gap ? waiting : 0;",
        "tests/test_fabric_machine.py::test_invariant_7_wide_devices_merge_in_child_order",
    ),
    Mutation(
        8,
        "an error does not say who is missing",
        "csrc/failure.c",
        "mark_missing(f, p->root[plane], t, news.workers);",
        "",
        "tests/test_fabric.py::test_invariant_8_without_any_link_there_is_an_error",
    ),
    Mutation(
        8,
        "resends count as vain while a device is at work",
        "csrc/host.c",
        "wait->resends += counts;",
        "wait->resends += counts || true;",
        "tests/test_fabric.py::test_invariant_8_resends_to_a_slow_handler_are_not_in_vain",
    ),
    Mutation(
        8,
        "a worker gives up while a device is at work",
        "csrc/failure.c",
        "if (at_work(p, plane, t, f->clock.now))",
        "if (false)",
        "tests/test_fabric.py::test_invariant_8_a_slow_handler_is_no_dead_worker",
    ),
    Mutation(
        8,
        "a result is not sent again",
        "csrc/device.c",
        "chunk_send_down(m, kept, p->child, parsed(d, now));",
        "",
        "tests/test_fabric_machine.py::test_invariant_8_the_loss_of_any_one_frame_is_made_good",
    ),
    Mutation(
        8,
        "a partial sum is not sent again",
        "csrc/device.c",
        "chunk_send_up(m, kept, parsed(d, now));",
        "",
        "tests/test_fabric_machine.py::test_invariant_8_the_loss_of_any_one_frame_is_made_good",
    ),
    # ---- slots, devices, links, planes ----
    Mutation(
        0,
        "a device's last child is merged first",
        "csrc/chunk.c",
        ".child = (u32)__builtin_ctzll(ready)};",
        ".child = 63 - (u32)__builtin_clzll(ready)};",
        "tests/test_slot.py::test_children_are_merged_in_order_whatever_arrives_first",
    ),
    Mutation(
        0,
        "a plane that is back goes on with what it had",
        "csrc/failure.c",
        "device_restart(p->member[i], first);",
        "(void)first;",
        "tests/test_fabric.py::test_a_plane_dies_and_comes_back",
    ),
    Mutation(
        0,
        "a plane stays suspected when the other has been left",
        "csrc/failure.c",
        "memset(p->suspect, 0, sizeof p->suspect);",
        "p->suspect[plane] = false;",
        "tests/test_fabric.py::test_planes_that_were_suspected_at_once_are_left_again",
    ),
    Mutation(
        0,
        "a group that has failed is at work",
        "csrc/group.h",
        "return g->failed ? NULL : g->first;",
        "return g->first;",
        "tests/test_scheduling.py::test_a_group_that_has_failed_is_no_work",
    ),
    Mutation(
        0,
        "the way of a frame that is sent again goes back to the oldest collective",
        "csrc/host.c",
        "outlet_since(w->outlet, t->exchange->started,",
        "outlet_since(w->outlet, w->group->first->started,",
        "tests/test_path.py::test_a_frame_that_is_sent_again_goes_back_to_its_own_collective",
    ),
    Mutation(
        0,
        "what is begun again on another plane goes the way of the last event",
        "csrc/host.c",
        "            send_unasked(w, plane, t, now);\n}",
        "            send(w, plane, t, now);\n}",
        "tests/test_path.py::test_what_is_begun_again_goes_back_to_its_own_collective",
    ),
    Mutation(
        0,
        "what a dead plane had begun is not begun again",
        "csrc/group.c",
        "if (g->again_next < g->again_n)",
        "if (false)",
        "tests/test_fabric.py::test_a_plane_dies_and_comes_back",
    ),
    Mutation(
        0,
        "a result goes to the first child only, until others ask",
        "csrc/chunk.c",
        "for (u32 c = 0; c < w->member->children; c++)\n        chunk_send_down(",
        "for (u32 c = 0; c < 1; c++)\n        chunk_send_down(",
        "tests/test_fabric_machine.py::test_slots_and_trees_do_what_the_reference_does",
    ),
    Mutation(
        0,
        "frames under way share memory that a result may overwrite",
        "csrc/exchange.c",
        "p->worker[i].copies = copies;",
        "p->worker[i].copies = false;",
        "tests/test_soak.py::test_bad_links_change_no_bit",
    ),
    Mutation(
        8,
        "of the survivors' sums those that were sent are not in the error",
        "csrc/device.c",
        "chunk_record(&w);",
        "",
        "tests/test_fabric.py::"
        "test_invariant_8_a_dead_worker_is_named_and_the_survivors_sums_are_there",
    ),
    Mutation(
        8,
        "survivors below a device are not asked for their sums",
        "csrc/failure.c",
        "device_enter(m, t, c, partial, now);",
        "",
        "tests/test_fabric.py::"
        "test_invariant_8_a_dead_worker_is_named_and_the_survivors_sums_are_there",
    ),
    Mutation(
        0,
        "a job's frames reach another job's group",
        "csrc/device.c",
        "if (!m || m->group->number != p->group || m->group->job != p->job)",
        "if (!m || m->group->number != p->group)",
        "tests/test_slot.py::test_invariant_6_in_other_ways",
    ),
    Mutation(
        0,
        "a group is granted more lanes than there are",
        "csrc/party.c",
        "if (lanes < window)",
        "if (lanes < 1)",
        "tests/test_fabric.py::test_no_room",
    ),
    Mutation(
        0,
        "the second copy of a frame has the flipped ICRC of the first",
        "csrc/fabric.c",
        "corrupt(f, copy, fate.flip[i]);",
        "corrupt(f, copies[0], fate.flip[i]);",
        "tests/test_soak.py::test_copies_of_a_frame_are_corrupted_apart",
    ),
    Mutation(
        0,
        "what is under way survives its link",
        "csrc/link.c",
        "bool whole = downs == l->downs;",
        "bool whole = true;",
        "tests/test_link.py::test_a_link_that_goes_down_loses_what_is_under_way",
    ),
    Mutation(
        0,
        "events are queued out of order",
        "csrc/clock.c",
        "(q->n && q->ring[(end - 1) % CLOCK_QUEUE_ROOM].at > at)",
        "false",
        "tests/test_clock.py::test_time_never_goes_back",
    ),
    # ---- the wire ----
    Mutation(
        0,
        "a length is believed before it is checked",
        "csrc/packet.c",
        "if (n < HEAD_BYTES + ICRC_BYTES)",
        "if (n < HEAD_BYTES)",
        "tests/test_packet.py::test_each_check",
    ),
    Mutation(
        0,
        "any opcode is taken",
        "csrc/packet.c",
        "if (h[BTH_OPCODE] != UC_SEND_ONLY)",
        "if (false)",
        "tests/test_packet.py::test_each_check",
    ),
    Mutation(
        0,
        "a payload may be longer than its count says",
        "csrc/packet.c",
        "if (count * size != payload_bytes)",
        "if (count * size > payload_bytes)",
        "tests/test_packet.py::test_each_check",
    ),
    Mutation(
        0,
        "the ICRC is not compared",
        "csrc/packet.c",
        "if (check_icrc && !(f->has_icrc && f->icrc == packet_icrc(f)))",
        "if (check_icrc && !f->has_icrc)",
        "tests/test_packet.py::test_any_flipped_bit_is_seen",
    ),
    Mutation(
        0,
        "the ICRC depends on what routers change",
        "csrc/packet.c",
        "head[IP_TTL - IP_VERSION] = 0xff;",
        "",
        "tests/test_packet.py::test_fields_that_are_not_looked_at",
    ),
    Mutation(
        0,
        "a handler sees all of its core's scratchpad",
        "csrc/station.c",
        "end - above, r->host",
        "r->size - above, r->host",
        "tests/test_fabric.py::test_a_handler_sees_no_lane_but_its_own",
    ),
    Mutation(
        0,
        "registers and stack go from job to job",
        "csrc/chunk.c",
        "if (core->job == m->group->job)",
        "if (core->job != NO_JOB)",
        "tests/test_fabric.py::test_a_job_finds_nothing_that_another_has_left",
    ),
    Mutation(
        0,
        "bytes that are summed by multiplication move too far",
        "csrc/crc.c",
        "0x653d982200000000ull",
        "0x653d982100000000ull",
        "tests/test_packet.py::test_round_trip",
    ),
    Mutation(
        0,
        "the PSN has 16 bits",
        "csrc/packet.c",
        ".psn = get24(h + BTH_PSN),",
        ".psn = get16(h + BTH_PSN + 1),",
        "tests/test_packet.py::test_round_trip",
    ),
    # ---- collectives by hosts in virtual time ----
    Mutation(
        0,
        "a merged frame leaves the rank's NIC at once",
        "csrc/relay.c",
        "m->what.taken ? c->egress : c->parse + c->egress",
        "m->what.taken ? 0 : c->parse + c->egress",
        "tests/test_relay.py::test_two_ranks_take_what_the_parts_take",
    ),
    Mutation(
        0,
        "what a rank adds of its own comes without DMA",
        "csrc/relay.c",
        "count_of(m, t->frame) * m->what.taken",
        "count_of(m, t->frame) * m->what.bytes",
        "tests/test_relay.py::test_two_ranks_take_what_the_parts_take",
    ),
    Mutation(
        0,
        "a device passes frames on without parsing them",
        "csrc/relay.c",
        "node->device->config.costs.parse + ",
        "",
        "tests/test_relay.py::test_two_ranks_take_what_the_parts_take",
    ),
    Mutation(
        0,
        "a rank merges on one core",
        "csrc/schedule.c",
        "if (free_at[best] > at && free_at[i] < free_at[best])",
        "if (free_at[best] > at && free_at[i] > free_at[best])",
        "tests/test_relay.py::test_cores_share_the_work",
    ),
    Mutation(
        0,
        "hosts' software is for the first message only",
        "csrc/relay.c",
        "m->posted = f->clock.now + egress + f->config.software;",
        "m->posted = f->clock.now + egress;",
        "tests/test_relay.py::test_software_is_paid_for_each_message",
    ),
    Mutation(
        0,
        "frames of a relay that has failed are not counted when they arrive",
        "csrc/relay.c",
        "if (kind == EVENT_ARRIVES)\n        land(f, t);\n    if (r->failed) {",
        "if (kind == EVENT_ARRIVES && !r->failed)\n        land(f, t);\n    if (r->failed) {",
        "tests/test_relay.py::test_a_link_that_is_down_ends_it",
    ),
    # ---- what waits for a DMA engine ----
    Mutation(
        0,
        "payloads are moved in the order in which they come",
        "csrc/inbound.c",
        "    next->ready = next->ready > from ? next->ready : from;\n",
        "",
        "tests/test_scheduling.py::test_messages_take_turns",
    ),
    Mutation(
        0,
        "what a child sends in a group is one message, whichever collective it is of",
        "csrc/inbound.c",
        "first->message != message || first->queue != q",
        "first->queue != q",
        "tests/test_scheduling.py::test_messages_take_turns",
    ),
    Mutation(
        0,
        "a payload is moved to where another one is read",
        "csrc/device.c",
        "           place_free(w->member, w->turn->place) <= at &&\n",
        "",
        "tests/test_scheduling.py::test_messages_take_turns",
    ),
    Mutation(
        0,
        "nobody looks earlier for who is ready earlier",
        "csrc/schedule.c",
        "    if (q->wake && q->wake <= at)\n",
        "    if (q->wake)\n",
        "tests/test_scheduling.py::test_messages_take_turns",
    ),
    Mutation(
        0,
        "what waits is no work",
        "csrc/device.c",
        "l->slot.version[which].parked != arrived || ",
        "",
        "tests/test_scheduling.py::test_nothing_is_sent_again_for_what_waits",
    ),
    Mutation(
        0,
        "what waits for a member that is gone stays",
        "csrc/device.c",
        "    turn_away(m->device, m);\n",
        "",
        "tests/test_scheduling.py::test_a_group_is_closed_while_its_payloads_wait",
    ),
    Mutation(
        0,
        "what waits for a group that has failed is merged",
        "csrc/device.c",
        "if (t && !g->failed) {",
        "if (t) {",
        "tests/test_scheduling.py::test_a_group_that_has_failed_goes_on_with_nothing",
    ),
    Mutation(
        0,
        "what is moved on leaves before it is there",
        "csrc/device.c",
        "    if (w->turn->moved)\n        w->kept->ready = later(w->kept->ready, dma.end);\n",
        "",
        "tests/test_scheduling.py::test_what_is_passed_on_leaves_when_it_has_been_moved",
    ),
    Mutation(
        0,
        "a payload that waits may be merged",
        "csrc/slot.c",
        "u64 waiting = v->parked & ~v->merged, missing = s->expected & ~v->parked;",
        "u64 waiting = v->arrived & ~v->merged, missing = s->expected & ~v->arrived;",
        "tests/test_scheduling.py::test_messages_take_turns",
    ),
    Mutation(
        0,
        "the survivors' sums lack what waits",
        "csrc/device.c",
        "enter_all(&w) && chunk_cut_short(&w)",
        "chunk_cut_short(&w)",
        "tests/test_scheduling.py::test_what_waits_counts_when_a_handler_fails",
    ),
    Mutation(
        0,
        "the way of a payload that has waited is that of the last event",
        "csrc/device.c",
        "            d->outlet->path = q->path;\n",
        "",
        "tests/test_path.py::test_the_guide",
    ),
    # ---- clusters ----
    Mutation(
        0,
        "all clusters of a device share a DMA engine",
        "csrc/schedule.h",
        "return s->costs.cluster ? core / s->costs.cluster : 0;",
        "return core < s->costs.cluster ? 0 : 0;",
        "tests/test_path.py::test_each_cluster_has_a_dma_engine",
    ),
    Mutation(
        0,
        "a rank merges on the cores of another cluster than what it merges is in",
        "csrc/relay.c",
        "u32 core = sched_core(own, w->engine, given),",
        "u32 core = sched_core(own, 0, given),",
        "tests/test_timeline.py::test_clusters",
    ),
    # ---- the timeline, and packets that go to free cores ----
    Mutation(
        0,
        "a lane's turn begins again in the trace with each resend",
        "csrc/host.c",
        "    m.source = w->wait[plane][t->place.lane].record;",
        "    m.source = put_turn(w, NICEMU_SPAN_OPEN, plane, t, 0, now);",
        "tests/test_timeline.py::test_lossy_links",
    ),
    Mutation(
        0,
        "a handler's cycles in the trace are those of the whole core",
        "csrc/chunk.c",
        "    took->cycles = cycles;",
        "    took->cycles = before + cycles;",
        "tests/test_timeline.py::test_an_allreduce",
    ),
    Mutation(
        0,
        "of the payloads that a handler takes the trace has the first",
        "csrc/chunk.c",
        "put_taken(w, w->lane->parked[slot + i].record);",
        "if (!i)\n            put_taken(w, w->lane->parked[slot + i].record);",
        "tests/test_timeline.py::test_an_allreduce",
    ),
    Mutation(
        0,
        "a slot is taken in the trace when its payload is parsed",
        "csrc/device.c",
        "    struct work w = chunk_at(m, t, now);\n    if (!fits(",
        "    struct work w = chunk_at(m, t, parsed(d, now));\n    if (!fits(",
        "tests/test_timeline.py::test_what_is_said_of_slices",
    ),
    Mutation(
        0,
        "a frame in the trace goes back to the link before the last",
        "csrc/fabric.c",
        "    f->outlet.trace.frame = t->record;",
        "    if (!f->outlet.trace.frame)\n        f->outlet.trace.frame = t->record;",
        "tests/test_timeline.py::test_an_allreduce",
    ),
    Mutation(
        0,
        "a relay's frame is made by nobody in the trace",
        "csrc/relay.c",
        "    t->record = record;\n",
        "    t->record = 0;\n",
        "tests/test_timeline.py::test_collectives_by_hosts",
    ),
    Mutation(
        0,
        "times of slices are rounded by themselves, and overlap",
        "nicemu/network/timeline.py",
        "dur=_file_time(end - begin)",
        "dur=_file_time(end - begin + 1)",
        "tests/test_timeline.py::test_any_rates",
    ),
    Mutation(
        0,
        "times are cut off below what they are",
        "nicemu/network/timeline.py",
        "return time if time * MICROSECOND >= nanoseconds else math.nextafter(time, math.inf)",
        "return time",
        "tests/test_timeline.py::test_times_are_read_as_they_are_meant",
    ),
    Mutation(
        0,
        "arrows end where a slice is over",
        "nicemu/network/timeline.py",
        "max(self.begin, min(time, self.end - 1))",
        "max(self.begin, min(time, self.end))",
        "tests/test_timeline.py::test_an_allreduce",
    ),
    Mutation(
        0,
        "a core is given to any packet that waits, from the last one on",
        "nicemu/device/schedule.py",
        "job = cluster.waiting.popleft()",
        "job = cluster.waiting.pop()",
        "tests/test_schedule.py::test_the_lowest_free_core_in_the_order_of_dma",
    ),
    Mutation(
        0,
        "a message keeps its turn as long as it has packets",
        "nicemu/device/schedule.py",
        "                self._ready[message] = jobs  # behind the others",
        "                self._ready = {message: jobs, **self._ready}",
        "tests/test_schedule.py::test_messages_take_turns_for_room",
    ),
    Mutation(
        0,
        "packets do not wait for the header handler of their message",
        "nicemu/device/schedule.py",
        "if any(message.left[: job.stage]):",
        "if any(message.left[_PAYLOAD : job.stage]):",
        "tests/test_schedule.py::test_a_message_waits_for_its_header_handler",
    ),
    Mutation(
        0,
        "the completion handler does not wait for other packets",
        "nicemu/device/schedule.py",
        "if any(message.left[: job.stage]):",
        "if any(message.left[: min(job.stage, _PAYLOAD)]):",
        "tests/test_schedule.py::test_completion_after_all_feedback",
    ),
    Mutation(
        0,
        "a handler of a message is over before its packet has left",
        "nicemu/device/schedule.py",
        "self._at(now + m.egress, _What.DONE, job)",
        "self._at(now, _What.DONE, job)",
        "tests/test_schedule.py::test_one_packet_has_all_three_handlers",
    ),
    Mutation(
        0,
        "each core fetches lines of its own",
        "nicemu/device/schedule.py",
        "cluster.lines.setdefault(step.line, now",
        "cluster.lines.setdefault(step.line + 64 * job.core, now",
        "tests/test_pspin.py::test_the_guide",
    ),
    Mutation(
        0,
        "cycles of a call are taken for those of another count",
        "csrc/known.c",
        "a->pc == b->pc && a->count == b->count && a->slot == b->slot",
        "a->pc == b->pc && a->slot == b->slot",
        "tests/test_steady.py::test_every_count_and_preset_has_cycles_of_its_own",
    ),
    # ---- banks and cores ----
    Mutation(
        0,
        "the DMA engine takes nothing from handlers that have begun",
        "csrc/booking.c",
        "displace(b, cycle, both);",
        "(void)both;",
        "tests/test_banks.py::test_the_dma_engine_displaces",
    ),
    Mutation(
        0,
        "a slot's calls are on several cores at once",
        "csrc/chunk.c",
        "if (w->kept->ready > given)",
        "if (w->kept->ready > given + given)",
        "tests/test_scheduling.py::test_calls_go_to_the_core_that_the_rule_says",
    ),
    Mutation(
        0,
        "cycles of banks begin anywhere in those of cores",
        "csrc/schedule.c",
        "s->phase = s->costs.cycle ? now % s->costs.cycle : 0;",
        "s->phase = now & 0;",
        "tests/test_relay.py::test_collectives_one_after_another",
    ),
    # ---- ops of one's own ----
    Mutation(
        0,
        "a worker that resends sends the result that another has",
        "csrc/host.c",
        "if (t->moved && t->result)",
        "if (t->result)",
        "tests/test_op.py::test_records_over_links_that_lose",
    ),
    Mutation(
        0,
        "the context of a job's first call on a core is forgotten",
        "csrc/chunk.c",
        "memset(s->host_arguments + CONTEXT_BYTES, 0, ARGUMENT_BYTES - CONTEXT_BYTES);",
        "memset(s->host_arguments, 0, ARGUMENT_BYTES);",
        "tests/test_op.py::test_the_context_is_what_the_collective_says",
    ),
)


class BuildError(Exception):
    """What the compiler said."""


class Build:
    """A copy of the tree whose extension is built object by object, without setuptools.

    The compiler says which files each object depends on, so that a mutation compiles only what its
    file is part of."""

    def __init__(self, where: Path) -> None:
        self.tree = where / "tree"
        self.objects = where / "objects"
        self.objects.mkdir()
        for part in PARTS:
            if (ROOT / part).is_dir():
                built = shutil.ignore_patterns("__pycache__", "*.so", ".hypothesis")
                shutil.copytree(ROOT / part, self.tree / part, ignore=built)
            else:
                shutil.copy(ROOT / part, self.tree / part)
        generate = (
            "import sys; sys.path.insert(0, 'csrc'); from ffi import COMPILE, ffi; "
            "ffi.emit_c_code('csrc/_nicemu.c'); print(*COMPILE)"
        )
        printed = self._run(sys.executable, "-c", generate)
        self.flags = shlex.split(printed.splitlines()[-1])  # behind what cffi has to say
        self.flags += shlex.split(os.environ.get("NICEMU_CFLAGS", ""))
        self.compiler = shlex.split(os.environ.get("CC", "cc"))
        self.compile(sorted(path.stem for path in (self.tree / "csrc").glob("*.c")))
        self.link()

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, cwd=self.tree, capture_output=True, text=True)
        if done.returncode:
            raise BuildError(done.stderr.strip())
        return done.stdout

    def compile(self, names: Sequence[str]) -> None:
        """Compile csrc/NAME.c for each name."""
        include = ("-Icsrc", f"-I{sysconfig.get_path('include')}", "-DPy_LIMITED_API=0x030B0000")

        def one(name: str) -> None:
            files = ("-c", f"csrc/{name}.c", "-o", str(self.objects / f"{name}.o"))
            self._run(*self.compiler, *self.flags, *QUICK, "-fPIC", "-MMD", *include, *files)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, names))

    def link(self) -> None:
        """Make the extension of the objects."""
        objects = sorted(map(str, self.objects.glob("*.o")))
        flags = shlex.split(os.environ.get("NICEMU_LDFLAGS", ""))
        out = str(self.tree / "nicemu" / "_nicemu.abi3.so")
        self._run(*self.compiler, "-shared", *objects, *flags, "-o", out)

    def users(self, file: str) -> list[str]:
        """Names of the C files that a file is part of."""
        depends = {path.stem: path.read_text().split() for path in self.objects.glob("*.d")}
        return sorted(name for name, files in depends.items() if file in files)

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """The tree with a mutation in it, built; afterwards as before."""
        path = self.tree / mutation.file
        text = path.read_text()
        users = self.users(mutation.file)
        kept = {self.objects / f"{name}.o": b"" for name in users}
        kept |= {out: out.read_bytes() for out in kept}
        try:
            path.write_text(text.replace(mutation.before, mutation.after))
            if users:
                self.compile(users)
                self.link()
            yield
        finally:
            path.write_text(text)
            for out, content in kept.items():
                out.write_bytes(content)
            if users:
                self.link()

    def test(self, *nodes: str) -> tuple[int, str]:
        """Run tests in the tree: pytest's exit status, and its last line."""
        done = subprocess.run(
            (sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *nodes),
            cwd=self.tree,
            env={**os.environ, "PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=TEST_SECONDS,
        )
        return done.returncode, (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]


def judge(build: Build, mutation: Mutation) -> tuple[bool, str]:
    """Is the mutation found, and what happened?"""
    try:
        with build.mutated(mutation):
            status, last = build.test(mutation.test)
    except BuildError as e:
        return False, f"does not build: {str(e).splitlines()[0]}"
    except subprocess.TimeoutExpired:
        return False, f"no end in {TEST_SECONDS} s"
    if status == pytest.ExitCode.TESTS_FAILED or status < 0:  # < 0: killed by a signal
        return True, "found" if status > 0 else "found: it crashes"
    return False, "survives" if status == pytest.ExitCode.OK else f"pytest: {last}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 when a mutation is not found, or a test fails without one."""
    parser = argparse.ArgumentParser("python -m tests.mutations", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutations whose row has all these words")
    options = parser.parse_args(arguments)
    chosen = [m for m in MUTATIONS if all(word in " ".join(map(str, m)) for word in options.words)]
    if not chosen:
        parser.error(f"{' '.join(options.words)}: no mutation has these words")
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        build = Build(Path(scratch))
        status, last = build.test(*dict.fromkeys(m.test for m in chosen))
        print(f"built in {time.monotonic() - start:.0f} s; as it is: {last}", flush=True)
        if status:
            return 1
        survivors = 0
        cells = [(str(m.invariant or "-"), m.file, m.what, m.test.split("::")[1]) for m in chosen]
        head = ("invariant", "file", "mistake", "test")
        widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]

        def row(cells: Sequence[str], seconds: str, outcome: str) -> None:
            columns = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
            print("  ".join((*columns, seconds.rjust(3), outcome)), flush=True)

        row(head, "s", "outcome")
        for m, names in zip(chosen, cells, strict=True):
            begin = time.monotonic()
            found, how = judge(build, m)
            survivors += not found
            row(names, f"{time.monotonic() - begin:.0f}", how)
    print(f"{len(chosen)} mutations, {survivors} survive, {time.monotonic() - start:.0f} s")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
