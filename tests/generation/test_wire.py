"""What endpoints send back, read as it really is."""

import json

import pytest

from posgap.generation.generator import Completion, Usage
from posgap.generation.wire import EndpointAnswer, Fault, read_answer, read_fault


def body(message=None, finish_reason="stop", **fields):
    return json.dumps({"choices": [{"message": message, "finish_reason": finish_reason}], **fields}).encode()


ANSWERS = {
    "text": (body({"content": " a \n"}), Completion("a", [])),
    "plain completion": (b'{"choices": [{"text": " a"}]}', Completion("a", [])),
    "cut": (body({"content": "a"}, "length"), Completion("a", [], cut=True)),
    "null": (body({"content": None}), Completion("", [], "empty", reason="the model ended without any text")),
    "parts": (body({"content": [{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}, "c"]}),
              Completion("abc", [])),
    "half a character": (body({"content": "a \ud83d"}), Completion("a \ufffd", [])),
    "both halves": (body({"content": "a \ud83d\ude00"}), Completion("a 😀", [])),
    "reasoning_content": (body({"content": "a", "reasoning_content": "b?"}), Completion("a", [], thoughts="b?")),
    "reasoning": (body({"content": "a", "reasoning": "b?"}), Completion("a", [], thoughts="b?")),
    "thoughts among the parts": (
        body({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "b?"}]},
                          {"type": "text", "text": "a"}]}),
        Completion("a", [], thoughts="b?"),
    ),
    "thoughts alone": (
        body({"content": None, "reasoning_content": "b?"}, "length"),
        Completion("", [], "truncated", "b?", "the limit of new tokens was reached while thinking"),
    ),
    "filtered": (body({"content": "half an ans"}, "content_filter"),
                 Completion("", [], "refused", reason="finish_reason content_filter")),
    "refusal": (body({"content": None, "refusal": "I cannot\nhelp."}),
                Completion("", [], "refused", reason="I cannot help.")),
    "refusal among the parts": (body({"content": [{"type": "refusal", "refusal": "No."}]}),
                                Completion("", [], "refused", reason="No.")),
    "tokens": (
        body({"content": "a"}, usage={"prompt_tokens": 9, "completion_tokens": 5,
                                      "completion_tokens_details": {"reasoning_tokens": 3}}),
        Completion("a", [], usage=Usage(9, 5, 3)),
    ),
    "blocked, with the provider's own text": (
        body({"content": "Sorry, the model cannot answer this question."}, "guardrail_intervened"),
        Completion("", [], "refused", reason="finish_reason guardrail_intervened"),
    ),
    "filtered, in other words": (body({"content": "a"}, "content_filtered"),
                                 Completion("", [], "refused", reason="finish_reason content_filtered")),
    "blocked without a text": (body({"content": None}, "SPII"),
                               Completion("", [], "refused", reason="finish_reason spii")),
    "cut at the model's context": (body({"content": "a"}, "model_context_window_exceeded"),
                                   Completion("a", [], cut=True)),
    "cut, by a reason that is an object": (body({"content": "a"}, {"type": "length", "max": 5}),
                                           Completion("a", [], cut=True)),
    "cut before there was a content": (
        body({"role": "assistant"}, "length"),
        Completion("", [], "truncated", reason="the limit of new tokens was reached before any text"),
    ),
    "ended by an end token": (body({"content": "a"}, "eos_token"), Completion("a", [])),
    "a byte order mark": (body({"content": "\ufeffa"}), Completion("a", [])),
    "tokens of a cache that are not among those of the prompt": (
        body({"content": "a"}, usage={"prompt_tokens": 5, "cache_read_input_tokens": 90,
                                      "cache_creation_input_tokens": 10}),
        Completion("a", [], usage=Usage(105, None, None)),
    ),
    "tokens of a cache that are": (
        body({"content": "a"}, usage={"prompt_tokens": 105, "cache_read_input_tokens": 90,
                                      "prompt_tokens_details": {"cached_tokens": 90}}),
        Completion("a", [], usage=Usage(105, None, None)),
    ),
    "tokens that are none": (
        body({"content": "a"}, usage={"prompt_tokens": -1, "completion_tokens": "5",
                                      "completion_tokens_details": [True]}),
        Completion("a", []),
    ),
}  # fmt: skip


def test_a_reason_that_is_not_known_is_handed_on():
    assert read_answer(body({"content": "a"}, "flux_overheated")).unknown_reason == "flux_overheated"
    assert not read_answer(body({"content": "a"}, "end_turn")).unknown_reason


# Shapes of LiteLLM, OpenRouter, Ollama, vLLM, Azure, Google, MiniMax, DashScope, Qianfan and SiliconFlow.
SAID_IN_A_200 = [
    (401, {"error": {"message": "litellm.AuthenticationError: no", "type": None, "param": None, "code": "401"}}),
    (401, {"error": {"message": "User not found.", "code": 401}, "user_id": "u"}),
    (401, {"error": {"message": "no", "type": "invalid_request_error", "code": "invalid_api_key"}}),
    (401, {"error": "Unauthorized"}),
    (401, {"error": {"message": "no", "status": "UNAUTHENTICATED"}}),
    (401, {"choices": None, "base_resp": {"status_code": 1004, "status_msg": "login fail: wrong key"}}),
    (401, {"code": "InvalidApiKey", "message": "no", "request_id": "r"}),
    (401, {"statusCode": 401, "message": "Access token is missing"}),
    (401, {"error_code": 110, "error_msg": "Access token: invalid access_token"}),
    (402, {"error": {"message": "This request requires more credits", "code": 402}}),
    (402, {"error": {"message": "pay", "type": "insufficient_quota", "code": "insufficient_quota"}}),
    (403, {"error": {"message": "no", "status": "PERMISSION_DENIED"}}),
    (404, {"error": {"message": "no", "type": "invalid_request_error", "code": "model_not_found"}}),
    (404, {"error": "model 'x' not found"}),
    (404, {"error": {"code": "DeploymentNotFound", "message": "no"}}),
    (404, {"code": 20012, "message": "Model does not exist. Please check it carefully.", "data": None}),
    (400, {"object": "error", "message": "no", "type": "BadRequestError", "param": None, "code": 400}),
    (400, {"error": {"message": "no", "type": "invalid_request_error", "code": "context_length_exceeded"}}),
    (400, {"error": {"message": "This model's maximum context length is 10 tokens"}}),
    (429, {"error": {"message": "Rate limit exceeded: free-models-per-day", "code": 429}}),
    (429, {"error": {"message": "no", "type": "invalid_request_error", "code": "rate_limit_exceeded"}}),
    (503, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    (503, {"error": "model x not found here: temporarily at capacity"}),
    (504, {"error": {"message": "Request timed out."}}),
    (500, {"code": 500, "msg": "invalid key", "success": False}),
    (502, {"choices": [{"error": {"code": 502, "message": "upstream"}, "finish_reason": "error"}]}),
    (200, {"error": {"message": "Something went wrong", "code": 1234}}),
    (200, {"error": {"message": "x" * 300 + " invalid api key"}}),
]


@pytest.mark.parametrize(("status", "sent"), SAID_IN_A_200, ids=str)
def test_an_error_in_a_200_has_the_status_that_it_means(status, sent):
    fault = read_answer(json.dumps(sent).encode())
    assert isinstance(fault, Fault) and (fault.status, fault.is_in_success) == (status, status != 200)


def test_a_200_without_choices_that_says_too_little_is_no_completion():
    for sent in ({"code": 0, "msg": "strange"}, {"base_resp": {"status_code": 1000, "status_msg": "strange"}}):
        with pytest.raises(ValueError, match="choices: strange"):
            read_answer(json.dumps(sent).encode())


@pytest.mark.parametrize("name", ANSWERS)
def test_a_completion_is_read_whatever_its_form(name):
    sent, completion = ANSWERS[name]
    assert read_answer(sent) == EndpointAnswer(completion, "", "")


def test_what_the_endpoint_says_of_itself_is_read_where_it_is_text():
    assert read_answer(body({"content": "a"}, model="m", system_fingerprint="f"))[1:3] == ("m", "f")
    long = read_answer(body({"content": "a"}, model="m\n" * 500)).model
    assert len(long) < 210 and "\n" not in long
    assert read_answer(body({"content": "a"}, model=3, system_fingerprint=None))[1:3] == ("", "")


@pytest.mark.parametrize(
    "sent",
    [
        b"", b"garbage", b"<html>", b"[]", b"null", b"\xff", b"{}", b'{"choices": {}}', b'{"choices": []}',
        b'{"choices": [null]}', b'{"choices": ["a"]}', b'{"choices": [{}]}', b'{"choices": [{"message": "a"}]}',
        b'{"choices": [{"message": {}}]}', body({"content": "a"})[:-9], b"[" * 100_000, b'{"a":' * 100_000,
        b'data: {"choices": [{"delta": {"content": "a"}}]}', body({"content": ""}, "error"),
        b'{"choices": [{"message": {"content": ' + b"9" * 5000 + b"}}]}",
    ],
    ids=lambda sent: repr(sent[:30]),
)  # fmt: skip
def test_what_is_no_completion_is_said_to_be_none(sent):
    with pytest.raises(ValueError, match="."):
        read_answer(sent)


@pytest.mark.parametrize(
    ("status", "sent", "is_of_a_filter"),
    [
        (400, {"error": {"message": "The response was filtered", "code": "content_filter", "param": "prompt",
                         "innererror": {"code": "ResponsibleAIPolicyViolation"}}}, True),
        (400, {"error": {"message": "Your request was rejected", "type": "invalid_request_error",
                         "code": "content_policy_violation"}}, True),
        (400, {"error": {"message": "Content Exists Risk", "type": "invalid_request_error"}}, True),
        (400, {"code": "DataInspectionFailed", "message": "Input data may contain inappropriate content."}, True),
        (403, {"error": {"code": 403, "message": "m requires moderation. Your input was flagged for 'x'"}}, True),
        (451, "blocked by the content filter", True),
        (403, {"error": {"message": "You have no access to this model"}}, False),
        (400, {"error": {"message": "maximum context length is 10 tokens", "code": "context_length_exceeded"}}, False),
        (429, {"error": {"message": "the moderation service is busy"}}, False),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_content_filter_refused_is_told_from_other_faults(status, sent, is_of_a_filter):
    text = sent if isinstance(sent, str) else json.dumps(sent)
    assert read_fault(status, text.encode()).is_of_a_filter == is_of_a_filter


def test_an_error_in_the_place_of_a_completion_is_a_fault():
    fault = read_answer(b'{"error": {"code": "content_filter", "message": "no"}}')
    assert isinstance(fault, Fault) and fault.is_of_a_filter
    bare = read_answer(b'{"code": "DataInspectionFailed", "message": "no"}')
    assert isinstance(bare, Fault) and bare.is_of_a_filter


@pytest.mark.parametrize(
    ("status", "sent", "refused"),
    [
        (400, {"error": {"message": "Unsupported parameter", "param": "seed"}}, "seed"),
        (400, {"error": {"message": "temperature: Extra inputs are not permitted"}}, "temperature"),
        (400, {"object": "error", "message": "top_p must be in (0, 1]", "code": 400}, "top_p"),
        (422, {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]}, "seed"),
        (422, {"detail": [{"loc": ["body", "x"], "msg": "unknown", "input": "seed"}, 3, {"loc": 3}]}, None),
        (400, {"error": "prompt is too long: what seed does it take ..."}, None),
        (500, {"error": {"message": "Unsupported parameter", "param": "seed"}}, None),
        (400, {"error": {"message": "invalid " + "x" * 300 + " seed"}}, None),
    ],
    ids=str,
)
def test_a_parameter_that_the_endpoint_does_not_take_is_known_by_its_name(status, sent, refused):
    fault = read_fault(status, json.dumps(sent).encode())
    assert [name for name in ("max_tokens", "temperature", "seed", "top_p") if fault.refuses(name)] == (
        [refused] if refused else []
    )


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"out of\nmemory", "599: out of memory"),
        (b"", "599"),
        (b"\x1b[31m\x07red \xe2\x80\xae", "599: [31m red"),
        (b"\xff\xfe", "599: \ufffd\ufffd"),
        (b'{"error": null}', '599: {"error": null}'),
        (b'{"error": {"message": "half \\ud83d"}}', "599: half \ufffd"),
        (b"x" * 5000, "599: " + "x" * 200 + "..."),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_fault_is_shown_in_one_short_line(sent, shown):
    assert str(read_fault(599, sent)) == shown
