# What the folders of papers share (README.md, Papers).  A folder's Makefile
# names its pages (TABLES), its groups of rows that need no calibration (PLAIN)
# and that do (TRAINED; OWN: on $(WORK)/GROUP-dump.h5), says which
# groups a page is made of, and includes this.
#
#   make -C results/vecinfer table4 MODEL=model.gguf TEXT=text.txt OUT=folder
#
# A group is a file of kvppl's rows, a page is made of groups: what was stopped,
# or killed, goes on where it was, and pages share what they have in common.
# A change of these settings, or another version, makes the rows again.
#
# CTX is in tokens, WINDOWS and CALIB_WINDOWS in windows of CTX tokens, ROUNDS
# in rounds of k-means (none: each scheme's own); GEMM is kvppl's, f32 or bf16.
# BOS=--bos begins every window with a BOS, as Gemma wants it.

ROOT   := $(patsubst %/results/paper.mk,%,$(abspath $(lastword $(MAKEFILE_LIST))))
BIN    ?= $(ROOT)/build/tools
DATA   ?= $(ROOT)/data/fetched
MODEL  ?= $(DATA)/smollm2-135m-instruct-q4_1.gguf
TEXT   ?= $(DATA)/wikitext2-raw-test.txt
CALIB  ?= $(DATA)/c4-valid-sample.txt
PTB    ?= $(DATA)/ptb-test.txt
PTB_CALIB ?= $(DATA)/ptb-valid.txt
CTX    ?= 1024
WINDOWS ?= 16
CALIB_WINDOWS ?= 32
ROUNDS ?= 10
GEMM   ?= f32
BOS    ?=
OUT    ?= .
NAME   ?= $(basename $(notdir $(patsubst %/,%,$(MODEL))))
WORK   ?= $(OUT)/work-$(NAME)

PAPER   = $(ROOT)/results/paper
FIGURES = $(ROOT)/results/figures
PAGE   := $(OUT)/$(NAME)
SETTINGS = $(WORK)/settings
INPUTS ?= $(LM) text=$(TEXT):$(WINDOWS) calib=$(CALIB):$(CALIB_WINDOWS)
LM      = model=$(MODEL) ctx=$(CTX) rounds=$(ROUNDS) gemm=$(GEMM) bos=$(BOS)
INPUTS := $(INPUTS)
WHAT   ?= --what k,v

groups = $(1:%=$(PAGE)-%.csv)
specs_of = $(shell $(PAPER) specs rows.csv $(1) $(ROUNDS))
specs  = $(call specs_of,$*)
SCORED ?= $(WINDOWS)
PPL     = $(BIN)/kvppl -m $(MODEL) -f $(TEXT) $(BOS) -c $(CTX) -n $(SCORED) \
	--gemm $(GEMM) --kl --resume
DUMP    = $(BIN)/kvdump -m $(MODEL) $(BOS) -c $(CTX) $(WHAT)

all: $(TABLES)
$(TABLES): %: $(PAGE)-%.md

# Everything that a run needs is looked at first; the file changes with it.
$(SETTINGS): FORCE
	@$(PAPER) check $@ bin=$(BIN) $(INPUTS)

$(WORK)/dump.h5: $(SETTINGS)
	$(DUMP) -f $(CALIB) -n $(CALIB_WINDOWS) -o $@

$(TRAINED:%=$(WORK)/%-calib.h5): $(WORK)/%-calib.h5: $(WORK)/dump.h5 rows.csv
	$(BIN)/kvcalib $(specs) $< -o $@

# The dump is the folder's own.
$(OWN:%=$(WORK)/%-calib.h5): $(WORK)/%-calib.h5: $(WORK)/%-dump.h5 rows.csv
	$(BIN)/kvcalib $(specs) $< -o $@

$(call groups,$(PLAIN)): $(PAGE)-%.csv: $(SETTINGS) rows.csv
	$(PPL) $(specs) -o $@

$(call groups,$(TRAINED) $(OWN)): $(PAGE)-%.csv: $(WORK)/%-calib.h5
	$(PPL) $(specs) -C $< -o $@

$(TABLES:%=$(PAGE)-%.md): $(PAGE)-%.md: paper.csv rows.csv README.md $(PAPER)
	$(PAPER) page $* $(PAGE) $@ $(SETTINGS)

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all $(TABLES) FORCE
