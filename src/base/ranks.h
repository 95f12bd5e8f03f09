#ifndef FLUX__BASE_RANKS_H
#define FLUX__BASE_RANKS_H
#include "platform.h"

/* ---------------------------------------------------------------------- base/ranks.h
   What a loader, an optimiser and flux_train ask of the processes that work
   together. They know a communicator by its address alone, and whoever made it
   sets flux__ranks, the table of calls that serve it.

   Invariant: where there is a communicator there is the table. A call checks
   the communicator itself, and a false answer was told as an error. */

FLUX__BEGIN_COLD

typedef struct flux__rank_calls {
    int (*rank)(const flux_comm *c);      /* -1 on an error, and so size */
    int (*size)(const flux_comm *c);
    /* replaces each of the n numbers by the largest that any rank has there */
    bool (*agree)(flux_comm *c, int n, uint8_t *v);
    /* gives all ranks the seed of rank 0 */
    bool (*seed)(flux_comm *c, uint64_t mine, uint64_t *seed);
    /* says what this rank's batch counts in a mean over all ranks; 1: as much as any other */
    void (*weigh)(flux_comm *c, double weight);
    /* the rule Distributed, number r of the state's chain: makes gradients those of all ranks */
    bool (*distribute)(flux_state *s, int r);
    /* makes whole parameters of the shares in a state's leaf.next */
    bool (*join)(flux_state *s);
    /* gathers n numbers of each rank, this rank's being at all + rank n */
    bool (*gather)(flux_comm *c, int n, double *all);
    /* on rank 0 a copy of the state without shares, to be saved, on the others the state itself;
       NULL: an error was told */
    flux_state *(*whole)(flux_state *s);
} flux__rank_calls;
static const flux__rank_calls *flux__ranks;

FLUX__END_COLD

#endif /* FLUX__BASE_RANKS_H */
