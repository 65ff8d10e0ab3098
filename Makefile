# What a developer or a user types. Everything lives in .venv; tools/setup.sh makes it and says what the machine lacks.
# PYTEST_ARGS="-k name -x" narrows `make test`, which runs two tests at a time for each processor and one more, eight at
# most, since most of a test's time is waiting; with -s, --pdb or `-n 0` one. SERVE_ARGS="--port 1445" goes to the server, CASES="siw tcp" to the kernel lab, SUITES="lock lease" narrows
# `make torture`, TORTURE_ARGS=--update makes its results the expected ones. FUZZ_SECONDS=600 is for each target of `make
# fuzz`, FUZZ_TARGETS="captures names" chooses them.

VENV_PYTHON := .venv/bin/python

TESTS_AT_ONCE := $(shell n=$$((2 * $$(nproc) + 1)); [ $$n -le 8 ] || n=8; echo $$n)

# Tests of a module stay together (they share servers) until a worker has nothing left to do.
WORKERS = $(if $(filter -s --capture=no --pdb --trace,$(PYTEST_ARGS)),0,$(TESTS_AT_ONCE) --dist worksteal)

# A Python that may not write down what it compiled compiles 340 modules at each start of a server, for 0.4 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test lint format docs examples examples-bench conformance kernel-test bench bench-quick torture torture-newest torture-variants torture-macos wpts fuzz mutants deb clean

serve: .venv/.installed
	tools/serve_demo.sh $(SERVE_ARGS)

test: .venv/.installed-dev
	tools/setup.sh test-tools
	$(VENV_PYTHON) -m pytest -n $(WORKERS) $(PYTEST_ARGS)

lint: .venv/.installed-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	MYPYPATH=examples .venv/bin/mypy -p benches -p rstore -p rsort -p carafe -p flashnet
	$(VENV_PYTHON) -m tools.check_layers

# The documentation as a site, in build/site. A warning is an error.
docs: .venv/.installed-dev
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build -q
	@echo build/site/index.html

# The systems in examples/ on small inputs, about a minute. EXAMPLES="RStore Carafe" chooses.
examples: .venv/.installed-dev
	$(VENV_PYTHON) -m tools.examples $(EXAMPLES)

# The comparisons of these systems with others, and of TCP with RDMA, one after the other: less than a quarter of an hour
# on two processors that nobody else uses. They write their pages and pictures in docs/. BENCH_ARGS="--rounds 1" is short.
examples-bench: .venv/.installed-dev
	tools/setup.sh test-tools
	$(VENV_PYTHON) examples/rstore bench --markdown docs/rstore.md $(BENCH_ARGS)
	$(VENV_PYTHON) examples/rsort bench --markdown docs/rsort.md $(BENCH_ARGS)
	$(VENV_PYTHON) examples/carafe bench --markdown docs/carafe.md $(BENCH_ARGS)
	$(VENV_PYTHON) examples/flashnet bench --markdown docs/flashnet.md $(BENCH_ARGS)
	$(VENV_PYTHON) -m tools.bench.tcp_or_rdma --page docs/tcp-or-rdma.md $(BENCH_ARGS)

format: .venv/.installed-dev
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

# Our server over all fabrics, rule by rule. CONFORMANCE_ARGS="--cases 'SmbdCredit*'" narrows it, and writes no page then.
conformance: .venv/.installed
	mkdir -p build
	$(VENV_PYTHON) -m smb3server conformance --html build/conformance.html --junit build/conformance.xml \
	  $(if $(CONFORMANCE_ARGS),$(CONFORMANCE_ARGS),--markdown docs/conformance.md)

kernel-test: .venv/.installed-dev
	tools/setup.sh kernel-lab
	$(VENV_PYTHON) -m tools.kernel_lab $(LAB_ARGS) $(CASES)

# Samba needs root. BENCH_ARGS="--quick" is one short round; --cases "sizes" narrows it.
bench: .venv/.installed-dev
	tools/setup.sh test-tools
	$(VENV_PYTHON) -m tools.bench.report --page docs/performance.md $(BENCH_ARGS)

# Regressions since the record; BENCH_ARGS=--update makes this run the record.
bench-quick: .venv/.installed-dev
	$(VENV_PYTHON) -m tools.bench.quick $(BENCH_ARGS)

torture: .venv/.installed
	tools/setup.sh test-tools
	$(VENV_PYTHON) -m tools.torture $(SUITES) $(TORTURE_ARGS)

# The smbtorture of Debian's newest Samba, as root. tools/setup.sh samba-newest makes the folder that it runs out of.
torture-newest: .venv/.installed
	$(VENV_PYTHON) -m tools.torture --newest $(SUITES) $(TORTURE_ARGS)

# The core suites over SMB Direct; all with signing and with encryption required; what concerns handles and sessions with
# persistent handles on one node and on a cluster of two; the core suites and the latter on slow storage.
# TORTURE_ARGS=--quick leaves out suites that mostly wait, but not over SMB Direct.
torture-variants: .venv/.installed
	tools/setup.sh test-tools
	$(VENV_PYTHON) -m tools.torture --fabric iwarp $(filter-out --quick,$(TORTURE_ARGS))
	$(VENV_PYTHON) -m tools.torture --fabric mixed $(if $(filter --quick,$(TORTURE_ARGS)),multichannel session) $(filter-out --quick,$(TORTURE_ARGS))
	$(VENV_PYTHON) -m tools.torture --signing required $(TORTURE_ARGS)
	$(VENV_PYTHON) -m tools.torture --encryption required $(TORTURE_ARGS)
	$(VENV_PYTHON) -m tools.torture --available $(TORTURE_ARGS)
	$(VENV_PYTHON) -m tools.torture --slow $(TORTURE_ARGS)
	$(VENV_PYTHON) -m tools.torture --cluster $(TORTURE_ARGS)

# smbtorture's suites about Macs, of this machine's Samba and of the newest, against both and against this server.
torture-macos: .venv/.installed
	tools/setup.sh test-tools
	$(VENV_PYTHON) -m tools.torture.macos --newest $(TORTURE_ARGS)

# Microsoft's own suites, from a folder that has them built for Linux: make wpts WPTS=FOLDER [SUITES="smb2 fsa"]
# [WPTS_ARGS="--filter Name~Lease"]. About 15 minutes, as root.
wpts: .venv/.installed
	WPTS="$(WPTS)" $(VENV_PYTHON) -m tools.wpts $(SUITES) $(WPTS_ARGS)

# The optional modules in C are built when the project is installed.
INSTALLED_FROM := pyproject.toml setup.py tools/setup.sh $(shell find smbdirect smb3server witness -name '_*.c')

.venv/.installed: $(INSTALLED_FROM)
	tools/setup.sh install

.venv/.installed-dev: $(INSTALLED_FROM)
	tools/setup.sh install-dev

FUZZ_SECONDS ?= 60

# Guided by coverage, on every decoder and on whole connections; needs atheris. build/fuzz keeps the corpora.
fuzz: .venv/.installed-dev
	$(VENV_PYTHON) -m tools.fuzz.campaign --seconds $(FUZZ_SECONDS) --targets "$(FUZZ_TARGETS)"

# Damages that the judges of servers and of captures must find; docs/judges.md. Some minutes. MUTANTS_ARGS=--update writes
# the tables.
mutants: .venv/.installed-dev
	@failed=0; for judge in server captures; do \
	  $(VENV_PYTHON) -m tools.mutants.$$judge $(MUTANTS_ARGS) || failed=1; \
	done; exit $$failed

# The Debian package, in build/deb; about a minute. Needs Debian's python3-venv and python3-pip.
deb:
	tools/packaging/build_deb.sh

clean:
	rm -rf .venv build dist/*.whl dist/*.tar.gz *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
