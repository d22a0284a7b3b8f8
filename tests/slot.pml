/* slot.pml: one lane of the slot protocol in a tree of two levels, for spin (test_slot_model.py).
 *
 *              root             device 1, children: leaf (node 3), host 2
 *             /    \
 *         leaf     host 2       device 0, children: host 0, host 1
 *        /    \
 *    host 0  host 1
 *
 * The network is a set of frames that only grows: a frame that was sent may arrive at any later
 * time, again and again, or never.  That is every loss, duplication, reordering and delay, with no
 * bound on their number, so that the search over ROUNDS rounds is complete.
 *
 * Once, at any time, everybody may have to begin anew in a round that nobody has seen, as on a plane
 * that was dead; frames from before are still under way.
 *
 * That every collective ends is shown from each state: what is under way arrives, or on any set of
 * links is lost, and from then on resends by the hosts alone bring each host a round further with
 * every sweep.
 *
 * Assertions name the invariant.  Not modelled: several lanes (they share nothing), keys (they
 * follow from lane and round), handlers that fail.
 *
 * Each of these, defined, is a mistake that the search must find:
 *   NO_BITMAP      arrivals are counted, not remembered by child
 *   ONE_BIT        frames and versions know their round modulo 2; an arrival clears the child's bit
 *                  in the other version, as published for links that keep the order
 *   CROSS_CLEAR    the same clearing beside full rounds
 *   NO_DOWN_ROUND  a result is taken without a look at its round
 *   STALE_ADDED    a frame of an earlier round counts for the version's present one
 *   STALE_RESULT   a reused version still answers with its earlier result
 *   EARLY          a device is complete with one child missing
 *   HASTY          a host sends its next round before it has the result of the last
 *   FORGETFUL      beginning anew, a device takes whatever round comes first
 *   DEAF_LEAF      a leaf does not send its partial sum again
 *   DEAF           a device does not send its result again */

#ifndef ROUNDS
#define ROUNDS 5 /* ROUNDS bits of a byte, HOSTS * ROUNDS bits of an int */
#endif
#define HOSTS 3
#define LEAF 3
#define NODES 4 /* hosts and leaf: what has a parent */
#define ROOT 1
#define DEVICES 2

#define parent(node) (node / 2)
#define children(device) (3 << (2 * device)) /* bit = node */
#define below(node) (node == LEAF -> 3 : 1 << node) /* bit = host */
#define members(device) (device == ROOT -> 7 : 3)

/* What hosts contribute: a bit of its own for each host and round.  A sum of as many terms as it
 * should have bits is right only if each term is in it once. */
#define share(hosts, round) (hosts << (HOSTS * (round)))

#define IDLE 0
#define GATHERING 1
#define SENT 2 /* the partial sum has gone up */
#define RESULT 3 /* the result is here */
typedef Version {
    byte state;
    byte round;
    byte arrived; /* bit = child */
    int sum;
    int result
}
typedef Device { Version version[2] }

Device device[DEVICES];
byte begin; /* the first round since everybody began anew */
byte turn[HOSTS]; /* the round whose result the host waits for */
byte up[NODES]; /* bit = round: frames from the node to its parent */
byte down[NODES]; /* and from its parent to the node */
bool ended;

hidden byte d, v, i, j, k, l, m; /* inside one step only */
#define here device[d].version[v]
#define other device[d].version[1 - v]

#ifdef FORGETFUL
#define BEFORE_ALL(r) false
#else
#define BEFORE_ALL(r) (r < begin)
#endif
#ifdef ONE_BIT
#define OLDER(r) false
#define NEWER(node, r) (here.state == IDLE || (here.state == RESULT && !SEEN(node)))
#define AWAITED(r, here_round) ((r) % 2 == (here_round) % 2)
#else
#ifdef STALE_ADDED
#define OLDER(r) false
#else
#define OLDER(r) (here.state == IDLE -> BEFORE_ALL(r) : r < here.round)
#endif
#define NEWER(node, r) (here.state == IDLE || r > here.round)
#ifdef NO_DOWN_ROUND
#define AWAITED(r, here_round) true
#else
#define AWAITED(r, here_round) (r == here_round)
#endif
#endif

#ifdef NO_BITMAP
#define SEEN(node) (here.state != GATHERING)
#else
#define SEEN(node) (here.arrived >> node & 1)
#endif

/* A round begins only right after one whose result is here. */
#if defined(ONE_BIT)
#define MAY_BEGIN(r) true
#elif defined(FORGETFUL)
#define MAY_BEGIN(r) (other.state == IDLE || other.state == RESULT)
#else
#define MAY_BEGIN(r)                                                                               \
    ((here.state == IDLE || here.state == RESULT) &&                                               \
     (other.state == IDLE -> here.state == IDLE && r == begin :                                    \
                             other.state == RESULT && r == other.round + 1))
#endif

inline send_partial()
{
    assert(here.sum == share(members(d), here.round)); /* 1, 2 */
    up[LEAF] = up[LEAF] | 1 << here.round
}

inline send_result(nodes)
{
    assert(here.result == share(members(ROOT), here.round)); /* 2, 7 */
    for (i : 0 .. NODES - 1) {
        if
        :: nodes >> i & 1 -> down[i] = down[i] | 1 << here.round
        :: else
        fi
    }
}

inline begin_round(r)
{
    for (i : 0 .. HOSTS - 1) {
        assert(here.state == IDLE || turn[i] > here.round) /* 3 */
    }
    here.state = GATHERING;
    here.round = r;
    here.arrived = 0;
    here.sum = 0;
#ifndef STALE_RESULT
    here.result = 0
#endif
}

inline add(node, r)
{
    here.sum = here.sum + share(below(node), r);
#ifdef NO_BITMAP
    here.arrived = here.arrived + 1;
    if
    :: here.arrived == 2 -> complete()
    :: else
    fi
#else
    here.arrived = here.arrived | 1 << node;
#if defined(CROSS_CLEAR) || defined(ONE_BIT)
    other.arrived = other.arrived & (15 - (1 << node));
#endif
    if
#ifdef EARLY
    :: true -> complete()
#else
    :: here.arrived == children(d) -> complete()
#endif
    :: else
    fi
#endif
}

inline complete()
{
    if
    :: d == ROOT -> here.state = RESULT; here.result = here.sum; send_result(children(d))
    :: else -> here.state = SENT; send_partial()
    fi
}

inline answer(node)
{
    if
#ifdef STALE_RESULT
    :: here.result != 0 -> send_result(1 << node)
    :: here.result == 0 && here.state == SENT -> send_partial()
#else
    :: here.state == RESULT ->
#ifndef DEAF
        send_result(1 << node)
#else
        skip
#endif
    :: here.state == SENT ->
#ifndef DEAF_LEAF
        send_partial()
#else
        skip
#endif
#endif
    :: else
    fi
}

/* A child's frame is at its device. */
inline arrive_up(node, r)
{
    d = parent(node);
    v = r % 2;
    if
    :: OLDER(r) -> skip /* 5 */
    :: !OLDER(r) && NEWER(node, r) ->
        if
        :: MAY_BEGIN(r) -> begin_round(r); add(node, r)
        :: else
        fi
    :: !OLDER(r) && !NEWER(node, r) ->
        if
        :: SEEN(node) -> answer(node)
        :: else -> add(node, r)
        fi
    fi
}

/* A result is at the leaf, or at a host. */
inline arrive_down(node, r)
{
    if
    :: node == LEAF ->
        d = 0;
        v = r % 2;
        if
        :: here.state == SENT && AWAITED(r, here.round) ->
            here.state = RESULT;
            here.result = share(members(ROOT), r);
            send_result(children(d))
        :: else
        fi
    :: node != LEAF && AWAITED(r, turn[node]) ->
        assert(r == turn[node]); /* 4, 7 */
        turn[node] = r + 1;
        send(node)
    :: else
    fi
}

inline send(host)
{
    if
    :: turn[host] < ROUNDS -> up[host] = up[host] | 1 << turn[host]
    :: else
    fi
#ifdef HASTY
    if
    :: turn[host] + 1 < ROUNDS -> up[host] = up[host] | 2 << turn[host]
    :: else
    fi
#endif
}

/* A frame of a round between a node and its parent. */
proctype Frame(byte node, round)
{
end:
    do
    :: d_step { !ended && up[node] >> round & 1 -> arrive_up(node, round) }
    :: d_step { !ended && down[node] >> round & 1 -> arrive_down(node, round) }
    od
}

proctype Anew()
{
end:
    d_step {
        !ended;
        for (k : 0 .. HOSTS - 1) {
            if
            :: turn[k] + 2 > begin -> begin = turn[k] + 2
            :: else
            fi
        }
        for (k : 0 .. DEVICES - 1) {
            for (j : 0 .. 1) {
                device[k].version[j].state = IDLE;
                device[k].version[j].round = 0;
                device[k].version[j].arrived = 0;
                device[k].version[j].sum = 0;
                device[k].version[j].result = 0
            }
        }
        for (k : 0 .. HOSTS - 1) {
            turn[k] = begin;
            send(k)
        }
    }
}

/* Hosts resend; all that is under way arrives, children's before their parents', results after. */
inline sweep()
{
    for (k : 0 .. HOSTS - 1) {
        send(k)
    }
    for (k : 0 .. NODES - 1) {
        for (j : 0 .. ROUNDS - 1) {
            if
            :: up[k] >> j & 1 -> up[k] = up[k] - (1 << j); arrive_up(k, j)
            :: else
            fi
        }
    }
    for (l : 1 .. NODES) {
        k = NODES - l;
        for (j : 0 .. ROUNDS - 1) {
            if
            :: down[k] >> j & 1 -> down[k] = down[k] - (1 << j); arrive_down(k, j)
            :: else
            fi
        }
    }
}

/* From some state on nothing is lost any more. */
proctype Calm()
{
    byte lost; /* bit = the direction of a link that loses what is under way */
    atomic {
        for (i : 0 .. 2 * NODES - 1) {
            if
            :: lost = lost | 1 << i
            :: true
            fi
        }
    }
    d_step {
        for (i : 0 .. NODES - 1) {
            if
            :: lost >> (2 * i) & 1 -> up[i] = 0
            :: else
            fi;
            if
            :: lost >> (2 * i + 1) & 1 -> down[i] = 0
            :: else
            fi
        }
        lost = 0;
        for (m : 1 .. ROUNDS) {
            sweep()
        }
        for (k : 0 .. HOSTS - 1) {
            assert(turn[k] >= ROUNDS) /* 8 */
        }
        ended = true
    }
}

init
{
    atomic {
        for (i : 0 .. HOSTS - 1) {
            send(i)
        }
        for (i : 0 .. NODES - 1) {
            for (j : 0 .. ROUNDS - 1) {
                run Frame(i, j)
            }
        }
        run Anew();
        run Calm()
    }
}
