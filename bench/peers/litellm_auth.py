"""One caller with limits, for LiteLLM without a database: the nearest to a virtual key that it runs with."""

from litellm.proxy._types import UserAPIKeyAuth


async def user_api_key_auth(request, api_key: str) -> UserAPIKeyAuth:
    if api_key != "sk-bench":
        raise ValueError("unknown key")
    return UserAPIKeyAuth(
        api_key=api_key,
        user_id="bench",
        team_id="bench",
        rpm_limit=100_000_000,
        tpm_limit=100_000_000_000,
        max_parallel_requests=100_000,
        max_budget=1_000_000.0,
        spend=0.0,
    )
