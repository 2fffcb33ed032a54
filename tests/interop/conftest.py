"""SageMaker's SDKs report each call to AWS unless a file says otherwise: here one does."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_OFF = """
SchemaVersion: '1.0'
SageMaker:
  PythonSDK:
    Modules:
      TelemetryOptOut: true
"""

_directory = tempfile.TemporaryDirectory(prefix="trcomp-interop-")
_file = Path(_directory.name, "config.yaml")
_file.write_text(_OFF)
os.environ["SAGEMAKER_USER_CONFIG_OVERRIDE"] = str(_file)
os.environ["SAGEMAKER_SUPPRESS_V2_WARNING"] = "1"
# The SDK wants a region as it is imported.
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
