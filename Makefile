# flux.h needs no build: this file runs its examples, tests and benchmarks.
#   make run        the digits example, at full speed
#   make test       the processor's tests, then a software GPU's and the quick checks; ends with "N passed, N failed, N skipped"
#   make test-all   all there is: every random case, every device, other compilers, processors and languages
#   make examples   each example in its short form: SHORT=1 is in its environment
#   make bench      the benchmarks in tests/bench/, one line a figure
#   make bench-peers    our training steps beside those of other libraries, whichever are installed
#   make fuzz       random graphs, and random bytes for each reader (tests/fuzz.sh)
#   make coverage   which branches of flux.h the tests take, by room (tests/coverage.sh)
#   make gpu-day    on a GPU that is lent for ten minutes: the suite, a sanitizer, figures beside PyTorch's (tests/gpu_day.sh)
#   make mutate     one-line defects in the CPU's code: which do the tests see? SEED=1 N=100 (by python3)
#   make flux.h     joins the header from its rooms in src/, where it is changed (src/README.md)
#   make clean
# config=release (the default), debug or sanitize; CC, CXX, CFLAGS, LDLIBS and DEFS (-DFLUX_CUDA ...) as you like.
# What is built lies in build/<config>. Any number of jobs may run (make -j), though timings in tests prefer few.
#
# The implementation is compiled once, tests/impl.c, and linked to every test, example and benchmark that uses the public
# interface. A file that has the line `#define FLUX_IMPLEMENTATION` brings its own: it looks inside, or shows how it is done.

config ?= release
.DEFAULT_GOAL := run
BUILD := build/$(config)
CFLAGS_release := -O2
CFLAGS_debug := -O0 -g
CFLAGS_sanitize := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
WARNINGS := -Wall -Wextra -Wpedantic
CFLAGS ?= $(CFLAGS_$(config))
LDLIBS ?= -lm
# a test's own code need not be fast, and there is much of it
$(BUILD)/tests/test_% $(BUILD)/gpu/test_%: private CFLAGS_release := -O1
COMPILE = $(CC) -std=c11 $(WARNINGS) $(CFLAGS) $(DEFS)
ifndef CFLAGS_$(config)
$(error config=$(config) is none of release, debug, sanitize)
endif

HEADERS := $(wildcard flux*.h tests/*.h tests/fixtures/*.h)
TESTS := $(sort $(wildcard tests/test_*.c))
CHECKS := $(sort $(wildcard tests/check_*.sh))
EXAMPLES := $(sort $(wildcard examples/*.c))
SOFTGPU := build/softgpu
BENCHES := $(sort $(wildcard tests/bench/bench_*.c))
PROGRAMS := $(TESTS) $(EXAMPLES) $(BENCHES)
OWN := $(if $(PROGRAMS),$(shell grep -l '^ *\# *define FLUX_IMPLEMENTATION' $(PROGRAMS)))
# These run again on GPUs: on a software device of CUDA and on two of HIP, and on a real one where there is one; and those where
# devices meet on three of CUDA.
ON_DEVICES := $(filter $(patsubst %,tests/test_%.c,activations bits data expr files gpu graphs layers layers_conv layers_seq losses mixed models models_memory ops optim optim_faults print products races schedule scopes tensors threads trace),$(TESTS))
SEVERAL := $(patsubst %,tests/test_%.c,data files gpu tensors trace)
DEVICES ?= soft-cuda1 soft-cuda3 soft-hip2 $(if $(wildcard /dev/nvidia0),cuda) $(if $(wildcard /dev/kfd),hip)
# `make test` leaves to `make test-all` what takes minutes: checks that compile much, what HIP does as CUDA does, and of tests that
# ask test_left_out() the long form on devices.
SLOW_CHECKS := $(filter $(patsubst %,tests/check_%.sh,blas compilers compile_time fuzz_files late processors python rtc warnings),$(CHECKS))
HIP_OWN := $(patsubst %,tests/test_%.c,data gpu trace)
SEVERAL_OWN := $(patsubst %,tests/test_%.c,data files tensors trace)
SHORTENED := $(if $(ON_DEVICES),$(shell grep -l test_left_out $(ON_DEVICES)))

# A run is a program on a device d, or a check. on(DEVICE,PROGRAMS,short or long)
on = $(patsubst tests/%.c,$(BUILD)/$3/$1/%.result,$2)
programs_on = $(if $(filter soft-cuda3,$d),$(filter $(SEVERAL),$(ON_DEVICES)),$(ON_DEVICES))
quick_on = $(filter $(if $(filter soft-hip%,$d),$(HIP_OWN),$(if $(filter soft-cuda3,$d),$(SEVERAL_OWN),%)),$(ON_DEVICES))
# test_gpu has nothing to do on the processor
ON_CPU := $(patsubst %.c,$(BUILD)/%.result,$(filter-out tests/test_softgpu.c $(if $(DEVICES),$(filter tests/test_gpu.c,$(ON_DEVICES))),$(TESTS)))
QUICK_CHECKS := $(patsubst %.sh,$(BUILD)/%.result,$(filter-out $(SLOW_CHECKS),$(CHECKS)))
QUICK := $(ON_CPU) $(QUICK_CHECKS) $(patsubst %.c,$(BUILD)/%.result,$(filter tests/test_softgpu.c,$(TESTS))) $(foreach d,$(DEVICES),$(call on,$d,$(quick_on),short))
LONG := $(foreach d,$(DEVICES),$(call on,$d,$(sort $(filter $(SHORTENED),$(programs_on)) $(filter-out $(quick_on),$(programs_on))),long)) $(SLOW_CHECKS:%.sh=$(BUILD)/%.result)
# what a long form says, a short one need not; AFTER=test: `make test` has run just now, so that only the rest does
ALL := $(if $(filter test,$(AFTER)),,$(filter-out $(patsubst $(BUILD)/long/%,$(BUILD)/short/%,$(LONG)),$(QUICK))) $(LONG)
DEVICES_ALONE := $(filter $(BUILD)/short/%,$(QUICK))
RESULTS := $(if $(filter test-all,$(MAKECMDGOALS)),$(ALL),$(if $(filter test-devices,$(MAKECMDGOALS)),$(DEVICES_ALONE),$(QUICK)))
TIMEOUT ?= 1200

flux.h: src/join.sh $(wildcard src/*.h src/*/*.h)
	sh src/join.sh src/flux.h >$@.new && mv $@.new $@

.PHONY: run test test-all examples bench bench-peers fuzz coverage gpu-day gpu-programs mutate test-devices softgpu start clean FORCE
.DELETE_ON_ERROR:
.SECONDARY:
run: $(BUILD)/examples/digits
	$(BUILD)/examples/digits

test test-all test-devices: $(RESULTS)
	@awk '/^FAILED/ { print FILENAME ": " $$0 } \
	      /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$$/ { p += $$1; f += $$3; s += $$5 } \
	      END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' /dev/null $(RESULTS)
# Each run counts itself in this file, so that it can say which of how many it is.
PROGRESS := $(BUILD)/progress
start:
	@mkdir -p $(BUILD) && : >$(PROGRESS)
run_test = @TIMEOUT=$(TIMEOUT) sh tests/run.sh $(PROGRESS) $(words $(RESULTS))
# Tests that bring the implementation take as long to build as it does: those that run on devices too are built once, with GPUs,
# and find none on the processor. (Those that bring a false one, for which there must be room, are not.)
BOTH := $(if $(DEVICES),$(filter-out $(shell grep -l flux__backend_set $(ON_DEVICES)),$(filter $(OWN),$(ON_DEVICES))))
for_cpu = $(BUILD)/$(if $(filter tests/$1.c,$(BOTH)),gpu,tests)/$1
IMPLEMENTATIONS := $(BUILD)/impl.o $(if $(and $(DEVICES),$(ON_DEVICES)),$(BUILD)/gpu/impl.o)
$(BUILD)/tests/test_%.result: tests/test_%.c $(IMPLEMENTATIONS) FORCE | start
	$(run_test) tests/test_$* $@ sh -c '$(MAKE) --no-print-directory -s $(call for_cpu,test_$*) && \
	  exec $(if $(filter $<,$(BOTH)),env FLUX_CUDA_LIBRARY=none FLUX_HIP_LIBRARY=none) $(call for_cpu,test_$*)'
$(BUILD)/tests/check_%.result: tests/check_%.sh $(BUILD)/impl.o FORCE | start
	$(run_test) tests/check_$* $@ env CC='$(CC)' CXX='$(CXX)' BUILD='$(BUILD)' sh $<

# The software GPU: what stands in for the drivers and run-time compilers of CUDA and HIP.
SOFT_PARTS := $(wildcard tests/softgpu/*)
SOFT_LIBS := $(SOFTGPU)/libcuda.so.1 $(SOFTGPU)/libnvrtc.so.13 $(SOFTGPU)/libamdhip64.so.6 $(SOFTGPU)/libhiprtc.so.6 $(SOFTGPU)/softgpu-device
softgpu: $(SOFT_LIBS)
SOFT_CC = @mkdir -p $(SOFTGPU); $(CC) -std=c11 -O2 $(WARNINGS)
$(SOFTGPU)/libcuda.so.1: $(SOFT_PARTS); $(SOFT_CC) -fPIC -shared -fvisibility=hidden -DSOFT_CUDA tests/softgpu/driver.c tests/softgpu/cuda.c tests/softgpu/control.c -o $@ -lpthread -ldl
$(SOFTGPU)/libamdhip64.so.6: $(SOFT_PARTS); $(SOFT_CC) -fPIC -shared -fvisibility=hidden -DSOFT_HIP tests/softgpu/driver.c tests/softgpu/hip.c tests/softgpu/control.c -o $@ -lpthread -ldl
$(SOFTGPU)/libnvrtc.so.13: $(SOFT_PARTS); $(SOFT_CC) -fPIC -shared -fvisibility=hidden -DSOFT_CUDA tests/softgpu/compiler.c tests/softgpu/prelude.c tests/softgpu/control.c -o $@ -lpthread -ldl
$(SOFTGPU)/libhiprtc.so.6: $(SOFT_PARTS); $(SOFT_CC) -fPIC -shared -fvisibility=hidden -DSOFT_HIP tests/softgpu/compiler.c tests/softgpu/prelude.c tests/softgpu/control.c -o $@ -lpthread -ldl
$(SOFTGPU)/softgpu-device: $(SOFT_PARTS); $(SOFT_CC) tests/softgpu/device.c tests/softgpu/matrices.c -o $@ -lpthread -ldl -lm -rdynamic

# The kernels that a program makes on a device of each kind are kept for check_rtc, and so that all of them are seen its cache is
# empty there.
KERNELS := $(abspath $(BUILD))/gpu/kernels
keeping = $(if $(filter soft-cuda1 soft-hip2,$1),FLUX_CACHE_DIR=$(KERNELS)/$2-$1.cache SOFTGPU_SOURCES=$(KERNELS)/$2-$1)
$(BUILD)/tests/test_softgpu.result: $(SOFT_LIBS)
define device_rules
$$(BUILD)/$2/$1/test_%.result: tests/test_%.c $$(IMPLEMENTATIONS) $$(SOFT_LIBS) FORCE | start
	@rm -rf $$(KERNELS)/test_$$*-$1; mkdir -p $$(KERNELS)/test_$$*-$1
	$$(run_test) 'tests/test_$$* on $1' $$@ sh -c '$$(MAKE) --no-print-directory -s $$(BUILD)/gpu/test_$$* && \
	  exec env $(if $(filter short,$2),SHORT=1) $$(call keeping,$1,test_$$*) sh tests/on_device.sh $1 $$(BUILD)/gpu/test_$$*'
	@rm -rf $$(KERNELS)/test_$$*-$1.cache
endef
$(foreach d,$(DEVICES),$(foreach form,short long,$(eval $(call device_rules,$d,$(form)))))
# Runs of one program come one after the other: it is built once, and what it writes has the same names.
define in_turn
$(foreach k,$(filter %/$1.result,$(RESULTS)),$(if $(before),$(eval $k: | $(before)))$(eval before := $k))$(eval before :=)
endef
$(foreach t,$(TESTS:tests/%.c=%),$(call in_turn,$t))
# the processor's tests first
$(filter-out $(ON_CPU),$(RESULTS)): | $(filter $(ON_CPU),$(RESULTS))
# it takes the kernels that those left
$(BUILD)/tests/check_rtc.result: | $(filter $(BUILD)/short/% $(BUILD)/long/%,$(RESULTS))
FORCE:
$(BUILD)/gpu/impl.o: tests/impl.c $(HEADERS)
	@mkdir -p $(@D)
	$(COMPILE) -DFLUX_CUDA -DFLUX_HIP -c $< -o $@
$(BUILD)/gpu/%: tests/%.c $(BUILD)/gpu/impl.o $(HEADERS)
	@mkdir -p $(@D)
	$(COMPILE) -DFLUX_CUDA -DFLUX_HIP -I. $< $(if $(filter tests/$*.c,$(OWN)),,$(BUILD)/gpu/impl.o) -o $@ $(LDLIBS)

examples: $(EXAMPLES:%.c=$(BUILD)/%)
	@for e in $^; do echo "== $$e"; SHORT=1 $$e || exit 1; done
bench: $(BENCHES:%.c=$(BUILD)/%)
	@for b in $^; do echo "== $$b"; $$b || exit 1; done
bench-peers: $(addprefix $(BUILD)/tests/bench/bench_,steps sequence cnn)
	@sh tests/bench/peers.sh '$(CC)' $^
fuzz: $(BUILD)/tests/test_graphs
	@CC='$(CC)' sh tests/fuzz.sh $<
coverage:
	@MAKE='$(MAKE)' TESTS='$(TESTS)' MISSED='$(MISSED)' sh tests/coverage.sh
gpu-day:
	@MAKE='$(MAKE)' BUILD='$(BUILD)' DEVICE='$(DEVICE)' sh tests/gpu_day.sh
mutate:
	@CC='$(CC)' python3 tests/mutate.py
gpu-programs: $(ON_DEVICES:tests/%.c=$(BUILD)/gpu/%) $(BUILD)/gpu/bench/gpu_figures $(if $(filter soft-%,$(DEVICES)),$(SOFT_LIBS))

$(BUILD)/impl.o: tests/impl.c $(HEADERS)
	@mkdir -p $(@D)
	$(COMPILE) -c $< -o $@
$(OWN:%.c=$(BUILD)/%): $(BUILD)/%: %.c $(HEADERS)
	@mkdir -p $(@D)
	$(COMPILE) -I. $< -o $@ $(LDLIBS)
$(BUILD)/%: %.c $(BUILD)/impl.o $(HEADERS)
	@mkdir -p $(@D)
	$(COMPILE) -I. $< $(BUILD)/impl.o -o $@ $(LDLIBS)

clean:
	rm -rf build
