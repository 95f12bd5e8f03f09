/* What calls of the library change for a while in the state of the thread, and put back: to be included behind the
   implementation. test.h asks at the end of each test, since what stays changed seldom shows in a result. */
#ifndef FLUX_OPEN_H
#define FLUX_OPEN_H
INSIDE const char *flux__test_open(int scopes) {
    const flux__thread *t = flux__self();
    return !t ? NULL : t->nscopes != scopes ? "scopes" : t->hidden ? "the hiding of temporaries" :
        t->nograd ? "FLUX_NOGRAD" : t->as_one ? "steps taken as one" : t->held ? "the holding back of messages" :
        t->quiet ? "the silence about errors" : t->where ? "the place of errors" : t->watch ? "a summary" :
        t->streams ? "an export" : t->training ? "training" : t->calling || t->origin ? "the layer called" :
        t->ahead ? "a batch ahead" : NULL;
}
INSIDE bool flux__test_workers_rest(void) {
    return !flux__pool.busy && !flux__pool.nworkers && !flux__pool.sleepers && flux__pool.gate == FLUX__GATE_SHUT;
}
INSIDE bool flux__test_workers_asleep(void) {
    return flux__atomic_load32(&flux__pool.sleepers) == flux__pool.nworkers;
}
/* What is under way, by the library's own account, after flux_shutdown. */
INSIDE const char *flux__test_at_work(void) {
    const flux_device cpu = { 0, 0 };
    const flux_mem m = flux_mem_stats(cpu);
    return flux__claims.first || flux__claims.locked || flux__claims.waiting ? "an evaluation" :
        !flux__test_workers_rest() ? "a thread" :
        m.live ? "a tensor's memory" : m.reserved ? "memory that was given back" : NULL;
}
#endif
