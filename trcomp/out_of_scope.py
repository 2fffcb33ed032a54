"""What SageMaker SDK v2's estimators could beyond training, and what of SDK v3 does it now."""

from __future__ import annotations

from trcomp.errors import OutOfScopeError

_BUILD = "sagemaker.serve.ModelBuilder(s3_model_data_url=estimator.model_data, …)"
_JOB = "sagemaker.core.resources.TrainingJob.get(estimator.latest_training_job.name)"
_HOOK = "the words debugger_hook_config, rules and tensorboard_output_config say it at the start"
_PROFILE = "the words profiler_config, profiler_rules and disable_profiler say it at the start"

METHODS = {
    "deploy": f"{_BUILD}.build(), then .deploy()",
    "create_model": f"{_BUILD}.build()",
    "register": f"{_BUILD}.build(), then .register()",
    "transformer": "sagemaker.core.transformer.Transformer, with a model that ModelBuilder built",
    "compile_model": f"{_BUILD}.optimize()",
    "training_job_analytics": "sagemaker.core.analytics.TrainingJobAnalytics; or "
    "estimator.latest_training_job.metrics() of metric_definitions",
    "get_app_url": f"{_JOB}; SageMaker's console has its page",
    "prepare_workflow_for_training": "trcomp.interop.to_model_trainer, in a Pipelines TrainingStep",
    "latest_job_debugger_artifacts_path": f"{_JOB}.debug_hook_config; {_HOOK}",
    "latest_job_tensorboard_artifacts_path": f"{_JOB}.tensor_board_output_config; {_HOOK}",
    "latest_job_profiler_artifacts_path": f"{_JOB}.profiler_config; {_PROFILE}",
    "enable_default_profiling": f"{_JOB}.update(profiler_config=…); {_PROFILE}",
    "disable_profiling": f"{_JOB}.update(profiler_config=…); {_PROFILE}",
    "update_profiler": f"{_JOB}.update(profiler_config=…); {_PROFILE}",
    "enable_remote_debug": "the word enable_remote_debug=True of the next estimator",
    "disable_remote_debug": "the word enable_remote_debug=False of the next estimator",
    "get_remote_debug_config": "estimator.plan().request['RemoteDebugConfig']",
    "get_session_chaining_config": "estimator.plan().request['SessionChainingConfig']",
    "get_vpc_config": "estimator.plan().request['VpcConfig']",
    "enable_network_isolation": "the word enable_network_isolation of the estimator",
}
"""SDK v2's methods that `Estimator` does not have, and what to use."""


def refusal(name: str) -> OutOfScopeError:
    """The error of asking for one of them."""
    return OutOfScopeError(
        f"Estimator has no {name!r}: trcomp trains, and leaves the rest to SageMaker's SDK v3.",
        f"Use {METHODS[name]}.",
    )
