# opened.mk - tests that say `#define FLUX_IMPLEMENTATION` and set nothing of it are linked to one
# implementation that all of them may look into (tests/inside.h). tcc does not know such functions.
SETS := FLUX_MALLOC|FLUX__$(if $(findstring -DFLUX_DEBUG,$(CFLAGS)),,|FLUX_DEBUG)
OPENED := $(if $(findstring tcc,$(CC)),,$(if $(filter tests/test_%,$(OWN)),$(shell \
  grep -LE '^ *\# *define ($(SETS))' $(filter tests/test_%,$(OWN)))))
OWN := $(filter-out $(OPENED),$(OWN))
# Examples, which have all of flux.h, are linked to one implementation, too; but for digits.c, which
# is compiled as users do, and is what `make run` runs.
LINKED := $(filter-out examples/digits.c,$(EXAMPLES))
OWN := $(filter-out $(LINKED),$(OWN))
$(LINKED:%.c=$(BUILD)/%): private DEFS += -Itests/linked
# Those that have no implementation are compiled once, and linked to one with GPUs and one without.
USERS := $(filter-out $(OWN) $(OPENED),$(TESTS))
# Their own code is not optimised, but for test_products' loops. That of the others is, lest all be
# made that they do not call.
PLAIN := $(patsubst %.c,$(BUILD)/%.o,$(filter-out tests/test_products.c,$(USERS)))
$(PLAIN): private CFLAGS_release := -O0
$(PLAIN): private CFLAGS_sanitize := $(CFLAGS_sanitize:-O1=-O0)
$(BUILD)/tests/test_use_faults.o: tests/test_uses.c
OPEN := $(HEADERS) build/opened/declared.h

build/opened/%.h: flux.h flux_cuda.h flux_hip.h tests/opened.awk
	@mkdir -p $(@D)/$* && for h in cuda hip; do \
	  awk -v what=$* -f tests/opened.awk flux_$$h.h >$(@D)/$*/flux_$$h.h || exit 1; done && \
	  awk -v what=$* -f tests/opened.awk flux.h >$@.new && mv $@.new $@
# With sanitizers that takes a minute: one, with GPUs, does for all; else for all with GPUs.
ifeq ($(findstring -fsanitize,$(CFLAGS)),)
OPENED_O := $(BUILD)/opened.o $(BUILD)/gpu/opened.o
ALIKE := $(BUILD)/gpu/impl.o
# A function's variable that it does not set holds a pattern, not a zero that was left there.
PATTERN = $(shell $(CC) -ftrivial-auto-var-init=pattern -fsyntax-only -x c /dev/null 2>/dev/null && \
  echo -ftrivial-auto-var-init=pattern)
$(BUILD)/impl.o: tests/impl.c $(HEADERS)
	$(COMPILE) -c $< -o $@
else
OPENED_O := $(BUILD)/gpu/opened.o
ALIKE := $(BUILD)/impl.o $(BUILD)/gpu/impl.o $(BUILD)/opened.o
GPUS := -DFLUX_CUDA -DFLUX_HIP
endif
$(ALIKE): $(BUILD)/gpu/opened.o ; ln -f $< $@
$(OPENED_O): tests/impl.c build/opened/defined.h $(HEADERS)
	$(COMPILE) $(PATTERN) -DTEST_OPENED -Ibuild -I. -c $< -o $@
$(OPENED:%.c=$(BUILD)/%): $(BUILD)/%: %.c $(BUILD)/opened.o $(OPEN)
	$(COMPILE) -DTEST_OPENED -Ibuild -I. $< $(BUILD)/opened.o -o $@ $(LDLIBS)
$(OPENED:tests/%.c=$(BUILD)/gpu/%): $(BUILD)/gpu/%: tests/%.c $(BUILD)/gpu/opened.o $(OPEN)
	$(COMPILE) -DTEST_OPENED -Ibuild -I. $< $(BUILD)/gpu/opened.o -o $@ $(LDLIBS)
$(USERS:%.c=$(BUILD)/%.o): $(BUILD)/%.o: %.c $(HEADERS)
	$(COMPILE) -I. -c $< -o $@
$(USERS:%.c=$(BUILD)/%): %: %.o $(BUILD)/impl.o
	$(COMPILE) $^ -o $@ $(LDLIBS)
$(USERS:tests/%.c=$(BUILD)/gpu/%): $(BUILD)/gpu/%: $(BUILD)/tests/%.o $(BUILD)/gpu/impl.o
	$(COMPILE) $^ -o $@ $(LDLIBS)
