"""Record tests that pass only when they are repeated.

pytest (`plugin`), smbtorture and the kernel lab write failures, and later results of the same tests, into one file
(`record`). ``python -m tools.flaky`` lists them at the end of .ci/run (`closing`).
"""
