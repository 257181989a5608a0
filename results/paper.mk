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
#
# A table of ANSWERED has also a page TABLE-scores, of generated answers, which
# TABLE makes too where TASKS is given:
#
#   make -C results/hack table6-scores TASKS=folder ITEMS=50
#
# SUBMIT=slurm makes jobs of a cluster of it (slurm.mk).
#
# TASKS is a folder with the items that tasks.csv names, ITEMS how many of each
# at most (LIMIT_arxiv of the task arxiv), PROMPT the most tokens of one, ONLY
# which tasks (all).  ASK, ANSWER and SCORE are options of scripts/task-prompts,
# kvgen and scripts/task-score; PYTHON has the packages of
# scripts/requirements-tasks.txt.

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
TASKS  ?=
ITEMS  ?= 50
ONLY   ?=
PROMPT ?= 7000
ASK    ?=
ANSWER ?=
SCORE  ?=
PYTHON ?= python3
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

# ---- scores of generated answers ----

SCORES  = $(ROOT)/results/scores
SCRIPTS = $(ROOT)/scripts
ANSWERS = $(WORK)/scores
LIMITS := $(foreach v,$(sort $(filter LIMIT_%,$(.VARIABLES))),$(v)=$($(v)))
ASKED   = items=$(ITEMS) $(LIMITS) prompt=$(PROMPT) gemm=$(GEMM) $(ASK) $(ANSWER) $(SCORE)

$(ANSWERS)/settings: FORCE
	@$(SCORES) check $@ $(BIN) $(MODEL) "$(TASKS)" '$(ASKED)'

# A group of rows and a task; the groups that are calibrated.
calib_of = $(if $(filter $(1),$(TRAINED)),$(WORK)/$(1)-calib.h5)
define answers
$(ANSWERS)/$(1)-$(2).jsonl: $(ANSWERS)/$(2)-prompts.jsonl rows.csv $(call calib_of,$(1))
	$(BIN)/kvgen -m $(MODEL) -f $$< -s f16 $$(shell $(PAPER) specs rows.csv \
		$(1) "$(ROUNDS)" $$$$($(SCORES) tables $(1) $(2))) \
		$(addprefix -C ,$(call calib_of,$(1))) --gemm $(GEMM) --resume \
		$$(shell $(SCORES) kvgen $(2)) $(ANSWER) -o $$@ > $$(@:.jsonl=.csv)
endef

items = $(or $(LIMIT_$(1)),$(ITEMS))

# A task.
define prompts
$(ANSWERS)/$(1)-prompts.jsonl: $(ANSWERS)/settings tasks.csv
	$(PYTHON) $(SCRIPTS)/task-prompts $$(shell $(SCORES) prompts $(1) $(TASKS)) \
		--limit $(call items,$(1)) --max-prompt $(PROMPT) -m $(MODEL) --bin $(BIN) \
		$(ASK) -o $$@
endef

# A table, a task, the groups.
define scores
$(ANSWERS)/$(1)-$(2).csv: $(3:%=$(ANSWERS)/%-$(2).jsonl)
	$(PYTHON) $(SCRIPTS)/task-score $(2) $$^ \
		--per-item $$(@:.csv=-items.csv) $(SCORE) -o $$@
$(PAGE)-$(1)-scores.md: $(ANSWERS)/$(1)-$(2).csv
endef

$(foreach t,$(ANSWERED),$(eval runs-$(t) := $(shell $(SCORES) runs $(t) $(ONLY))))
ALL_RUNS := $(sort $(foreach t,$(ANSWERED),$(runs-$(t))))
group_of = $(firstword $(subst :, ,$(1)))
task_of  = $(lastword $(subst :, ,$(1)))
tasks_of = $(sort $(foreach r,$(1),$(call task_of,$(r))))
of_task  = $(foreach r,$(1),$(if $(filter $(2),$(call task_of,$(r))),$(call group_of,$(r))))
$(foreach r,$(ALL_RUNS),$(eval $(call answers,$(call group_of,$(r)),$(call task_of,$(r)))))
$(foreach k,$(call tasks_of,$(ALL_RUNS)),$(eval $(call prompts,$(k))))
$(foreach t,$(ANSWERED),$(foreach k,$(call tasks_of,$(runs-$(t))),$(eval $(call \
	scores,$(t),$(k),$(call of_task,$(runs-$(t)),$(k))))))

$(ANSWERED:%=%-scores): %-scores: $(PAGE)-%-scores.md
$(ANSWERED:%=$(PAGE)-%-scores.md): $(PAGE)-%-scores.md: paper.csv rows.csv tasks.csv README.md $(SCORES)
	$(SCORES) page $* $(ANSWERS) $@ $(ONLY)
ifneq ($(TASKS),)
$(ANSWERED): %: %-scores
endif

include $(ROOT)/results/slurm.mk

.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all $(TABLES) $(ANSWERED:%=%-scores) FORCE
