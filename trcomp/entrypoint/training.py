"""What SageMaker's toolkit calls with SAGEMAKER_TRAINING_MODULE=trcomp.entrypoint.training:main.

An image with sagemaker-training has a `train` of its own, which calls the function that this
variable names. It takes a return for success, and an exception's `errno` for the exit code.
"""

from __future__ import annotations

from trcomp.entrypoint import __main__ as entrypoint


class TrainingFailed(Exception):
    """The host's part of the job failed; why stands in output/failure and above.

    Attributes:
        errno: The exit code, under the name by which the toolkit looks for it.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"The job ended with exit code {code}; see its own lines above.")
        self.errno = code


def main() -> None:
    """Run this host's part of the job, in place of the toolkit's runner.

    Raises:
        TrainingFailed: It ended with an exit code other than 0.
    """
    code = entrypoint.main()
    if code != 0:
        raise TrainingFailed(code)
