# flux.h needs no build: this file runs its examples, tests and benchmarks. Any -j will do.
#   make run          the digits example; make clean: rm build
#   make test         all tests and the quick checks; ends with "N passed, N failed, N skipped".
#                     Without tcc, a part of those on GPUs of software; `make test-all` has the rest
#   make test-losses  one test, tests/test_losses.c; DEVICES="soft-cuda1 cuda": on those GPUs, too
#   make check-rooms  one check, tests/check_rooms.sh
#   make test-all     every case, device, compiler and language; AFTER=test: what `test` left out
#   make examples     each example in its short form: SHORT=1 is in its environment
#   make bench        tests/bench, a line a figure; bench-peers, bench-models: beside others
#   make fuzz         random graphs, and random bytes for each reader (tests/fuzz.sh)
#   make coverage     which branches of flux.h the tests take, by room (tests/coverage.sh)
#   make gpu-day      ten minutes of a lent GPU; gpu-tests: tests alone; gpu-report: without a GPU
#   make mutate       which one-line defects the tests see; SEED=1 N=100; python3
#   make flux.h       joins the header from its rooms in src/, where it is changed (src/README.md)
#   make docs         build/docs.html: the manual, and every call with an example; python3
# config=release, debug or sanitize; CC, CXX, CFLAGS, LDLIBS, DEFS (-DFLUX_CUDA ...). tests/impl.c
# is linked to all programs but those that `#define FLUX_IMPLEMENTATION`; to examples, too.
config ?= release
BUILD := build/$(config)
CFLAGS_release := -O2
CFLAGS_debug := -O0 -g
CFLAGS_sanitize := -O1 -g1 -DFLUX_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all \
                   -fno-omit-frame-pointer
CFLAGS ?= $(or $(CFLAGS_$(config)),$(error config=$(config) is none of release, debug, sanitize))
LDLIBS ?= -lm
COMPILE = $(shell mkdir -p $(@D))$(CC) -std=c11 -Wall -Wextra -Wpedantic $(CFLAGS) $(GPUS) $(DEFS)
# A test's own code need not be fast, and there is much of it.
$(BUILD)/tests/test_% $(BUILD)/gpu/test_%: private CFLAGS_release := -O1
$(BUILD)/gpu/%: private GPUS := -DFLUX_CUDA -DFLUX_HIP
TIMEOUT ?= 1200

HEADERS := $(wildcard flux*.h tests/*.h tests/fixtures/*.h tests/softgpu/*.h)
TESTS := $(sort $(wildcard tests/test_*.c))
CHECKS := $(sort $(wildcard tests/check_*.sh))
EXAMPLES := $(sort $(wildcard examples/*.c))
BENCHES := $(sort $(wildcard tests/bench/bench_*.c))
PROGRAMS := $(TESTS) $(EXAMPLES) $(BENCHES)
OWN := $(if $(PROGRAMS),$(shell grep -l '^ *\# *define FLUX_IMPLEMENTATION' $(PROGRAMS)))
# All but these run again on devices: of software (soft-cuda3 is three of them) and real ones.
ON_DEVICES := $(filter-out $(patsubst %,tests/test_%.c,amx archives calls data_device devices \
  errors cheat_sheet export faults images% loops options platform refusals soft% tables uses \
  use_faults),$(TESTS))
ASKED := $(DEVICES)
DEVICES ?= soft-cuda1 soft-cuda3 soft-hip2 $(if $(wildcard /dev/nvidia0),cuda) \
           $(if $(wildcard /dev/kfd),hip)
GOALS := $(filter test test-% gpu-tests check-%,$(MAKECMDGOALS))

.PHONY: run $(GOALS) test test-all examples bench bench-peers bench-models fuzz coverage mutate \
        start clean docs gpu-tests gpu-programs gpu-day gpu-report softgpu FORCE
.DELETE_ON_ERROR:
.SECONDARY:
run: $(BUILD)/examples/digits ; $<
include tests/opened.mk
# What a goal runs, and what before what, is written by tests/plan.sh; one run is tests/one.sh.
ifneq ($(GOALS),)
$(shell mkdir -p $(BUILD) && BUILD='$(BUILD)' TESTS='$(TESTS)' CHECKS='$(CHECKS)' OWN='$(OWN)' \
  ON_DEVICES='$(ON_DEVICES)' DEVICES='$(DEVICES)' ASKED='$(ASKED)' AFTER='$(AFTER)' \
  OPENED='$(OPENED)' sh tests/plan.sh $(GOALS) >$(BUILD)/plan.mk)
include $(BUILD)/plan.mk
$(GOALS): ; @sh tests/verdict.sh $^
endif
$(BUILD)/%.result: FORCE
	@MAKE='$(MAKE)' BUILD='$(BUILD)' TOTAL='$(words $(RESULTS))' CC='$(CC)' CXX='$(CXX)' \
	  TIMEOUT='$(TIMEOUT)' AFTER='$(AFTER)' sh tests/one.sh $* $(PROGRAM)
start: flux.h ; @: >$(BUILD)/progress
flux.h: src/join.sh src/api/macros.h $(wildcard src/*.h src/*/*.h)
	sh src/join.sh src/flux.h >$@.new && mv $@.new $@
src/api/macros.h: src/macros.sh src/graph/table.h src/api/operations.h src/api/losses.h ; sh $< >$@
$(OWN:%.c=$(BUILD)/%): $(BUILD)/%: %.c $(HEADERS)
	$(COMPILE) -I. $< -o $@ $(LDLIBS)
$(patsubst tests/%.c,$(BUILD)/gpu/%,$(filter tests/%,$(OWN))): $(BUILD)/gpu/%: tests/%.c $(HEADERS)
	$(COMPILE) -I. $< -o $@ $(LDLIBS)
$(BUILD)/gpu/%: tests/%.c $(BUILD)/gpu/impl.o $(HEADERS)
	$(COMPILE) -I. $< $(BUILD)/gpu/impl.o -o $@ $(LDLIBS)
$(BUILD)/%: %.c $(BUILD)/impl.o $(HEADERS)
	$(COMPILE) -I. $< $(BUILD)/impl.o -o $@ $(LDLIBS)

SOFTGPU := $(addprefix build/softgpu/,libcuda.so.1 libnvrtc.so.13 libnccl.so.2 libamdhip64.so.6 \
             libhiprtc.so.6 librccl.so.1 softgpu-device softgpu-cc.so)
softgpu: $(SOFTGPU)
$(SOFTGPU): $(wildcard tests/softgpu/*.[ch] tests/softgpu/*.sh)
	@CC='$(CC)' sh tests/softgpu/build.sh $@
gpu-programs: $(ON_DEVICES:tests/%.c=$(BUILD)/gpu/%) $(BUILD)/gpu/bench/gpu_figures \
              $(if $(filter soft-%,$(DEVICES)),softgpu)

examples: $(EXAMPLES:%.c=$(BUILD)/%)
	@for e in $^; do echo "== $$e"; SHORT=1 $$e || exit 1; done
bench: $(BENCHES:%.c=$(BUILD)/%)
	@for b in $^; do echo "== $$b"; $$b || exit 1; done
bench-peers: $(addprefix $(BUILD)/tests/bench/bench_,steps sequence cnn)
	@sh tests/bench/peers.sh '$(CC)' $^
bench-models: $(BUILD)/tests/bench/bench_models ; @sh tests/bench/models.sh $< $(MODELS)
fuzz: $(BUILD)/tests/test_graphs ; @CC='$(CC)' sh tests/fuzz.sh $<
coverage: ; @MAKE='$(MAKE)' TESTS='$(TESTS)' MISSED='$(MISSED)' sh tests/coverage.sh
gpu-day: ; @MAKE='$(MAKE)' BUILD='$(BUILD)' DEVICE='$(DEVICE)' sh tests/gpu_day.sh
gpu-report: ; @CC='$(CC)' BUILD='$(BUILD)' SHOW=1 sh tests/check_gpu_report.sh
mutate: ; @CC='$(CC)' python3 tests/mutate.py
docs: ; mkdir -p build && python3 src/docs/page.py >build/docs.html
clean: ; rm -rf build
