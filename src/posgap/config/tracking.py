"""Parameters of the gate, the registry and the report, and of sending what tracking could not send."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from posgap.choices import BACKENDS, CHECK_RULES, GATE_RULES, SECRET
from posgap.config.base import BackendConfig, Config, StageConfig
from posgap.config.fields import (
    POSITIONAL,
    WORDS_OF_VERB,
    HubName,
    InputPath,
    InputPaths,
    ModelName,
    ModelPath,
    OnThisMachine,
    OptionalInputOrRegistered,
    OptionalInputPath,
    OptionalRegisteredName,
    OptionalReport,
    OptionalTaskName,
    OutputPath,
    RegisteredName,
    RunId,
    SettingsText,
    WorkPath,
)
from posgap.config.measurement import MODEL, ExpectedConfig, Judging, Mitigating, Sampled, Swept
from posgap.config.policy import PUBLIC_KEY, Demands, Enough


class _Judged(StageConfig):
    candidate: InputPath = Field(description="sweep of the candidate, the model to be admitted")
    base: InputPath = Field(description="sweep of the base, the model that the candidate was made from")
    champion: OptionalInputOrRegistered = Field(
        None,
        description="sweep of the current champion, to compare with, or registry:NAME, which is swept if need be; "
        "empty: the champion of --name, else the base",
    )
    examples: OptionalInputPath = Field(
        None, description="examples to sweep the registry's champion on; empty: those of the candidate's sweep"
    )
    policy: OptionalInputOrRegistered = Field(
        None,
        description="file of the policy, or registry:NAME; it then alone decides; empty: the options below",
    )
    name: OptionalRegisteredName = Field(
        "",
        description="registered model that the candidate is for: judge by its policy and against its champion, if any",
    )
    signer: str = Field(
        "",
        pattern=PUBLIC_KEY,
        description="public key that must belong to the private key in POSGAP_SIGNING_KEY, which signs the verdict; "
        "empty: any",
    )


class ChampionConfig(StageConfig):
    """Sweeps the champion of a registered model, if it has one, to compare candidates with or to watch it."""

    name: RegisteredName = Field("posgap", description="name of the registered model in MLflow")
    version: str = Field("", pattern=r"^[0-9]*$", description="number of the version to sweep; empty: the champion")
    examples: InputPath = Field(description="file of examples, .jsonl or .jsonl.gz, or folder from `validate`")
    like: OptionalInputPath = Field(
        None,
        description="sweep of the same examples, whose settings the champion is asked with; empty: those with which it "
        "was promoted",
    )
    force: bool = Field(
        True, description="run again even if the output is complete, since the champion may have changed"
    )


class GateConfig(*GATE_RULES.bases(), Demands, _Judged):  # type: ignore[misc]  # registered choices' parameters
    """Decides whether a model may enter the registry. Exit code 3: it may not; 7: there is not enough evidence."""


class CheckConfig(
    *CHECK_RULES.bases(),  # type: ignore[misc]  # registered choices' parameters
    Enough,
    Judging,
    Mitigating,
    Sampled,
    Swept,
    *BACKENDS.bases(),  # type: ignore[misc]
    BackendConfig,
):
    """Sweeps a model or an endpoint and judges it, without a base to compare with: one command for any CI.

    Exit code 3: it breaks a rule; 7: there is not enough evidence.
    """

    examples: OptionalInputPath = Field(  # type: ignore[assignment]  # the other stages do not make their own
        None, description="file of examples, .jsonl or .jsonl.gz, or folder from `validate`; empty: makes some"
    )
    model: ModelName = Field(description=MODEL)
    backend: Annotated[str, BACKENDS, AfterValidator(BACKENDS.checked_if_any)] = Field(
        "", description="backend that generates; empty: openai where there is a base_url, else transformers"
    )
    policy: OptionalInputPath = Field(
        None,
        description="file of the policy, of which the rules that need no base decide; empty: the options below",
    )
    judge: str = Field(
        "",
        description="model that scores the responses, as `grade` does: its name at `judge_url`, or a Hugging Face "
        "model folder; empty: the metric scores them",
    )
    n_examples: int = Field(300, ge=1, description="examples to make, where no file has any")
    junit: OptionalReport = Field(None, description="JUnit XML file to write, with a test case for each rule")
    markdown: OptionalReport = Field(
        None, description="Markdown file to write, with the curve as text; $GITHUB_STEP_SUMMARY is added to"
    )
    badge: OptionalReport = Field(None, description="JSON file to write, of which shields.io makes a badge")
    fresh: bool = Field(
        False, description="ask an endpoint everything again, whatever it answered before; in CI this is usual"
    )
    reuse: bool = Field(False, description="in CI too: use what an endpoint answered in an earlier check")

    @property
    def answered_by(self) -> str:
        return self.backend or ("openai" if self.base_url else BackendConfig.default("backend"))

    @model_validator(mode="after")
    def _either_fresh_or_reused(self) -> Self:
        if self.fresh and self.reuse:
            raise ValueError("`fresh` and `reuse` exclude each other; leave one out")
        if self.judge_url and not self.judge:
            raise ValueError("`judge_url`: give the name of the judge there too, as `judge`")
        return self


class GateReplayConfig(Config):
    """Judges again from what the gate kept beside its verdict, and says where the two differ, if they do."""

    folder: Annotated[InputPath, POSITIONAL] = Field(description="folder `gate` wrote, or a copy of it")


class PolicyDefaultConfig(Config):
    """Prints the policy of a gate without options as YAML, to begin a policy file with."""


class PolicyShowConfig(Config):
    """Prints the policy of a registered model as YAML."""

    name: Annotated[RegisteredName, POSITIONAL] = Field(description="name of the registered model in MLflow")


class PolicySetConfig(PolicyShowConfig):
    """Gives a registered model a policy: `promote` admits to it only what this policy does."""

    file: Annotated[InputPath, POSITIONAL] = Field(description="file of the policy, in YAML")


class PolicyKeygenConfig(Config):
    """Makes a pair of keys: the private one signs verdicts, and a policy can ask for the public one's signature.

    Put the file's content into POSGAP_SIGNING_KEY where `posgap gate` runs, and the printed line into the policy.
    """

    out: Annotated[OutputPath, OnThisMachine] = Field(description="file to write the private key to")


class HistoryConfig(Config):
    """Prints every version of a registered model with its figures, and which version was champion when and why."""

    name: Annotated[RegisteredName, POSITIONAL] = Field(description="name of the registered model in MLflow")


class RollbackConfig(HistoryConfig):
    """Makes the previous champion the champion again; `history` then says so, and why."""

    reason: str = Field(pattern=r"^[^\r\n]{1,300}$", description="why, in one line")


class GcConfig(Config):
    """Shows what commands that were killed left behind in MLflow, and removes it with --yes: runs that are said to be
    running, uploaded models and versions that came to nothing, leases that nobody holds, changes that broke off."""

    name: OptionalRegisteredName = Field("", description="registered model to look at; empty: all")
    older_than: float = Field(
        24, ge=0, description="hours without a sign of life after which a command counts as killed"
    )
    yes: bool = Field(False, description="remove what is shown")


class ApproveConfig(HistoryConfig):
    """Makes the challenger of a registered model the champion: a version that was promoted with --approval."""

    version: Annotated[int, POSITIONAL] = Field(ge=1, description="number of the version that has the alias challenger")


class PlanGateConfig(*GATE_RULES.bases(), ExpectedConfig):  # type: ignore[misc]  # registered choices' parameters
    """Says how many examples the gate needs to admit a model that has no gap and lost nothing to its base."""

    power: float = Field(0.8, gt=0.05, lt=1, description="how often such a model is to be admitted")
    examples: int = Field(0, ge=0, description="say what this number of examples can show at best; 0: do not")


class PromoteConfig(StageConfig):
    """Registers a model that passed the gate and makes it the champion."""

    model: ModelPath = Field(description="Hugging Face folder of the candidate")
    gate: InputPath = Field(description="folder from `gate`")
    sweep: InputPath = Field(description="sweep of the candidate")
    examples: OptionalInputPath = Field(
        None, description="examples that were swept, of which some are asked again; empty: those of the sweep"
    )
    name: RegisteredName = Field("posgap", description="name of the registered model in MLflow")
    approval: bool = Field(
        False,
        description="let it wait, as alias challenger, until `posgap approve` makes it the champion, even if no policy "
        "asks for that",
    )
    gate_again: WorkPath = Field(
        None,
        description="folder for a new verdict, by the same policy, where the champion has changed since `gate`; empty: "
        "the model is refused then",
    )
    answers: int = Field(
        4,
        ge=0,
        description="number of recorded responses that the version, loaded from the registry, is asked for again; "
        "0: none",
    )
    recipe: str = Field("", description="digest of how the model was made, from `preflight`; empty: is not recorded")


class WatchConfig(StageConfig):
    """Judges the champion's sweep on fresh data by its policy. Exit code 3: the champion breaks the policy."""

    champion: InputPath = Field(description="folder from `champion`")
    mitigate: SettingsText = Field(
        "{}",
        description="parameters of the mitigation pipeline as YAML, like {methods: r1, ...}, which is started on the "
        "KFP server when the champion has left its policy; empty: it is not started",
    )
    namespace: str = Field(
        "",
        description="namespace in which `mitigate` is started, if KFP is a multi-user installation; empty: it is not",
    )
    force: bool = Field(True, description="run again even if the output is complete, since the policy may have changed")


class ReportConfig(StageConfig):
    """Reports how a pipeline run ended: in MLflow, and to a webhook if there is one."""

    pipeline_run: RunId = Field("", description="id of the KFP run; empty: that in POSGAP_PIPELINE_RUN")
    state: str = Field(
        "", description="final state of the run according to KFP; empty: derived from its stages in MLflow"
    )
    message: str = Field("", description="KFP's message about the final state")
    registered_name: str = Field(PromoteConfig.default("name"), description="name of the registered model in MLflow")
    webhook_url: Annotated[str, SECRET] = Field(
        "", description="address to post the outcome to as JSON; empty: POSGAP_WEBHOOK_URL, if set"
    )


class SyncConfig(Config):
    """Sends to MLflow what stages could not send, when no server answered them or they were killed."""

    folders: Annotated[InputPaths, POSITIONAL] = Field(
        [Path()], description="outputs of stages, or folders that hold outputs; empty: all below this folder"
    )


class HubPushConfig(Config):
    """Pushes a model to the Hugging Face hub, with the figures, the curve and the report of its sweeps on its card.

    One commit holds it all. The token is in HF_TOKEN.
    """

    sweeps: Annotated[InputPaths, POSITIONAL] = Field(
        min_length=1, description="folders from `sweep`, of this model, the most important first"
    )
    model: ModelPath = Field(description="Hugging Face model folder, or models:/NAME@champion in MLflow")
    to: HubName = Field(description="name that it gets on the hub, like someone/model")
    private: bool = Field(False, description="make the model private, where it is new there")
    revision: str = Field("", description="branch to push to, made if need be; empty: main")
    report: bool = Field(True, description="push the report too, which shows prompts and responses")
    dry_run: bool = Field(False, description="only print what would be pushed, and the model card; ask nothing")


class DoctorConfig(Config):
    """Says what this machine can do, and for what is missing how to mend it. Exit code 1: something that is configured
    does not work."""


class ConfigFileConfig(Config):
    """Prints all options of a verb as a YAML file for --config, with what each is for."""

    verb: Annotated[list[str], POSITIONAL, WORDS_OF_VERB] = Field(
        min_length=1, description="the verb, like `scale search`"
    )


class CompletionConfig(Config):
    """Prints a script that has a shell complete verbs, options, their values and files.

    \b
    bash:  posgap completion bash > ~/.posgap-completion.bash, and `. ~/.posgap-completion.bash` in ~/.bashrc
    zsh:   posgap completion zsh > "${fpath[1]}/_posgap"
    fish:  posgap completion fish > ~/.config/fish/completions/posgap.fish
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], POSITIONAL] = Field(description="the shell")


class InitConfig(Config):
    """Asks which model to measure, on which data, on what task, and where to track runs; then writes posgap.yaml, and
    examples where there are none, and says the next command. An option answers its question."""

    model: str = Field("", description="Hugging Face model folder, or name on the hub; empty: asks")
    examples: str = Field("", description="file or folder of examples; made: makes some; empty: asks")
    task: OptionalTaskName = Field("", description="what a model is asked; empty: asks")
    tracking: str = Field(
        "", description="address of an MLflow server, sqlite:///FILE, or none, to track nothing; empty: asks"
    )
    force: bool = Field(False, description="replace files of these names")
