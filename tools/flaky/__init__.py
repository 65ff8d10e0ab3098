"""What passed only when it was repeated: pytest (`plugin`), smbtorture and the kernel lab write what failed and what
then passed into one file (`record`); ``python -m tools.flaky`` lists it at the end of .ci/run (`closing`).
"""
