# flux.h needs no build: this file runs its examples, tests and benchmarks.
#   make run        the digits example, at full speed
#   make test       every test and check that this machine can run; ends with "N passed, N failed, N skipped"
#   make examples   each example in its short form: SHORT=1 is in its environment
#   make bench      the benchmarks in tests/bench/, one line a figure
#   make bench-peers    our training steps beside those of other libraries, whichever are installed
#   make clean
# config=release (the default), debug or sanitize; CC, CXX, CFLAGS, LDLIBS and DEFS (-DFLUX_CUDA ...) as you like.
# What is built lies in build/<config>. Any number of jobs may run (make -j), though timings in tests prefer few.
#
# The implementation is compiled once, tests/impl.c, and linked to every test, example and benchmark that uses the public
# interface. A file that has the line `#define FLUX_IMPLEMENTATION` brings its own: it looks inside, or shows how it is done.

config ?= release
BUILD := build/$(config)
CFLAGS_release := -O2
CFLAGS_debug := -O0 -g
CFLAGS_sanitize := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
WARNINGS := -Wall -Wextra -Wpedantic
CFLAGS ?= $(CFLAGS_$(config))
LDLIBS ?= -lm
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
ON_DEVICES := $(filter $(patsubst %,tests/test_%.c,activations data expr files gpu layers layers_conv layers_seq losses mixed models models_memory ops optim optim_faults print products schedule tensors threads trace),$(TESTS))
SEVERAL := $(patsubst %,tests/test_%.c,data files gpu tensors trace)
DEVICES ?= soft-cuda1 soft-cuda3 soft-hip2 $(if $(wildcard /dev/nvidia0),cuda) $(if $(wildcard /dev/kfd),hip)
RESULTS := $(ON_DEVICES:tests/%.c=$(BUILD)/gpu/%.result) $(TESTS:%.c=$(BUILD)/%.result) $(CHECKS:%.sh=$(BUILD)/%.result)
TIMEOUT := $(if $(shell command -v timeout),timeout 1200)

.PHONY: run test examples bench bench-peers softgpu clean FORCE
.DELETE_ON_ERROR:
.SECONDARY:
run: $(BUILD)/examples/digits
	$(BUILD)/examples/digits

# A result is a program's output and, if it crashed or hung or did not build, a line that counts as one failure.
test: $(RESULTS)
	@awk '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$$/ { p += $$1; f += $$3; s += $$5 } \
	      END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 }' /dev/null $(RESULTS)
verdict = { s=$$?; tail -n 1 $@ | grep -q '^[0-9]* passed, [0-9]* failed, [0-9]* skipped$$' && test $$s -le 1 || \
            { echo "FAILED  $<: ended with status $$s"; echo "0 passed, 1 failed, 0 skipped"; } >>$@; \
            { echo "== $<"; cat $@; }; }
$(BUILD)/tests/test_%.result: tests/test_%.c $(BUILD)/impl.o $(HEADERS) FORCE
	@mkdir -p $(@D)
	@{ $(MAKE) --no-print-directory -s $(BUILD)/tests/test_$* && $(TIMEOUT) $(BUILD)/tests/test_$*; } >$@ 2>&1; $(verdict)
$(BUILD)/tests/check_%.result: tests/check_%.sh FORCE
	@mkdir -p $(@D)
	@CC='$(CC)' CXX='$(CXX)' BUILD='$(BUILD)' $(TIMEOUT) sh $< >$@ 2>&1; $(verdict)

# The software GPU: what stands in for the drivers and run-time compilers of CUDA and HIP.
SOFT_PARTS := $(wildcard tests/softgpu/*)
SOFT_LIBS := $(SOFTGPU)/libcuda.so.1 $(SOFTGPU)/libnvrtc.so.13 $(SOFTGPU)/libamdhip64.so.6 $(SOFTGPU)/libhiprtc.so.6 $(SOFTGPU)/softgpu-device
softgpu: $(SOFT_LIBS)
SOFT_CC = @mkdir -p $(SOFTGPU); $(CC) -std=c11 -O2 $(WARNINGS)
$(SOFTGPU)/libcuda.so.1: $(SOFT_PARTS); $(SOFT_CC) -fPIC -shared -fvisibility=hidden -DSOFT_CUDA tests/softgpu/driver.c tests/softgpu/cuda.c tests/softgpu/control.c -o $@ -lpthread -ldl
$(SOFTGPU)/libamdhip64.so.6: $(SOFT_PARTS); $(SOFT_CC) -fPIC -shared -fvisibility=hidden -DSOFT_HIP tests/softgpu/driver.c tests/softgpu/hip.c tests/softgpu/control.c -o $@ -lpthread -ldl
$(SOFTGPU)/libnvrtc.so.13: $(SOFT_PARTS); $(SOFT_CC) -fPIC -shared -fvisibility=hidden -DSOFT_CUDA tests/softgpu/compiler.c tests/softgpu/prelude.c tests/softgpu/control.c -o $@ -lpthread -ldl
$(SOFTGPU)/libhiprtc.so.6: $(SOFT_PARTS); $(SOFT_CC) -fPIC -shared -fvisibility=hidden -DSOFT_HIP tests/softgpu/compiler.c tests/softgpu/prelude.c tests/softgpu/control.c -o $@ -lpthread -ldl
$(SOFTGPU)/softgpu-device: $(SOFT_PARTS); $(SOFT_CC) tests/softgpu/device.c -o $@ -lpthread -ldl -lm -rdynamic

# A program's results on all devices, one after the other, since it is built once for all of them. The kernels that it makes on
# a device of each kind are kept for check_rtc, and so that all of them are seen its cache is empty there.
KERNELS := $(abspath $(BUILD))/gpu/kernels
$(BUILD)/gpu/test_%.result: tests/test_%.c $(BUILD)/gpu/impl.o $(HEADERS) $(SOFT_LIBS) FORCE
	@mkdir -p $(@D)
	@$(MAKE) --no-print-directory -s $(BUILD)/gpu/test_$* >$@.build 2>&1; built=$$?; : >$@; for d in $(filter-out $(if $(filter $<,$(SEVERAL)),,soft-cuda3),$(DEVICES)); do \
	  case $$d in soft-cuda1|soft-hip2) kept=$(KERNELS)/$*-$$d; rm -rf $$kept; mkdir -p $$kept; set FLUX_CACHE_DIR=$$kept.cache SOFTGPU_SOURCES=$$kept ;; *) set x= ;; esac; \
	  { cat $@.build; test $$built = 0 && env "$$@" $(TIMEOUT) sh tests/on_device.sh $$d $(BUILD)/gpu/test_$*; } >$@.$$d 2>&1; s=$$?; \
	  rm -rf $(KERNELS)/$*-$$d.cache; \
	  tail -n 1 $@.$$d | grep -q '^[0-9]* passed, [0-9]* failed, [0-9]* skipped$$' && test $$s -le 1 || \
	    { echo "FAILED  $< on $$d: ended with status $$s"; echo "0 passed, 1 failed, 0 skipped"; } >>$@.$$d; \
	  { echo "== $< on $$d"; cat $@.$$d; } | tee -a $@; done
$(BUILD)/gpu/impl.o: tests/impl.c $(HEADERS)
	@mkdir -p $(@D)
	$(COMPILE) -DFLUX_CUDA -DFLUX_HIP -c $< -o $@
$(BUILD)/gpu/%: tests/%.c $(BUILD)/gpu/impl.o $(HEADERS)
	@mkdir -p $(@D)
	$(COMPILE) -DFLUX_CUDA -DFLUX_HIP -I. $< $(if $(filter tests/$*.c,$(OWN)),,$(BUILD)/gpu/impl.o) -o $@ $(LDLIBS)
# they write files of the same names
$(BUILD)/gpu/test_files.result: | $(BUILD)/tests/test_files.result
# it takes the kernels that those left
$(BUILD)/tests/check_rtc.result: | $(filter $(BUILD)/gpu/%,$(RESULTS))
FORCE:

examples: $(EXAMPLES:%.c=$(BUILD)/%)
	@for e in $^; do echo "== $$e"; SHORT=1 $$e || exit 1; done
bench: $(BENCHES:%.c=$(BUILD)/%)
	@for b in $^; do echo "== $$b"; $$b || exit 1; done
bench-peers: $(addprefix $(BUILD)/tests/bench/bench_,steps sequence cnn)
	@sh tests/bench/peers.sh '$(CC)' $^

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
