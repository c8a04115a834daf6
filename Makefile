# Everything starts from python3, git and make; tools/setup says what it installs.
.PHONY: demo test soak check bench pins clean
.SILENT:

# What the kernel and systemd decide, and this machine may decide otherwise.
ON_OTHER_KERNELS := $(wildcard tests/security/test_limits*.py)

demo:    ## set up, then show the box at work; installs nothing
	tools/setup run
	tools/demo

test:    ## set up, then the whole test-suite; as root also the isolation tests as an ordinary user
	tools/setup dev
	tools/test

soak:    ## the test-suite with its long counts, twenty times those of `make test`; then the box on other kernels
	tools/setup dev
	RINGFENCE_SOAK=1 tools/test --timeout=7200
	for machine in bookworm trixie; do for who in root delegated; do \
		tools/other-machine $$machine $$who make demo && \
		tools/other-machine $$machine $$who .venv/bin/python -m pytest --timeout=600 $(ON_OTHER_KERNELS) || exit; \
	done; done

check:   ## format, lint, types, architecture, the house rules, and the dependencies' advisories
	tools/setup dev
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo
	.venv/bin/python -m pytest -q tests/unit/test_house.py
	.venv/bin/python tools/audit.py

bench:   ## the promises of SPEC.md, measured here; `dev` brings the Node and the pip it measures with
	tools/setup dev
	.venv/bin/ringfence bench

pins:    ## renew requirements/*.txt after a change of requirements/*.in
	tools/pin

clean:   ## remove what the targets above made
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
