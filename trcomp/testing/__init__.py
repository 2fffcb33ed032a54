"""A stand-in for AWS on this machine: launch code can be tested, and jobs run, without an account.

    server.py        one HTTP server: moto's S3, STS, IAM and CloudWatch Logs, and the control plane
    control.py       SageMaker's API for training jobs, as strict as botocore's model of it
    training.py      one training job: its states, its tries, its results
    hosts.py         the hosts of one try, with the real entrypoint
    host_files.py    what SageMaker puts under /opt/ml for a host
    channels.py      what a channel brings: objects as files, or a stream of records
    pipes.py         that stream, in Pipe mode
    cloudwatch.py    what hosts print, carried to CloudWatch
    plugin.py        the pytest fixture `sagemaker`: pytest_plugins = ["trcomp.testing.plugin"]

Needs the extra: pip install 'trcomp[testing]'.
"""

from trcomp.testing.server import SageMaker, serving

__all__ = ["SageMaker", "serving"]
