"""How a connection is made and what is retried."""

from __future__ import annotations

import grpc
import pytest

from volstream.spark.connection import Heartbeat, LocalChannelBuilder, RemotePolicy, builder_for, policy_for
from volstream.spark.jvm.address import EngineAddress, RemoteAddress

LOCAL = EngineAddress(1, "s3cret", "background", 1, "", 1, "")


class Unavailable(grpc.RpcError):  # type: ignore[misc]  # gRPC has no types
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE


def test_a_printed_address_does_not_show_its_token() -> None:
    assert "s3cret" not in repr(LOCAL)
    assert "s3cret" not in repr(RemoteAddress("sc://host/;token=s3cret"))


@pytest.mark.parametrize("url", ["sc://host:1", "sc://host:1/;token=s3cret", "sc://me:s3cret@host:1/"])
def test_messages_name_a_server_without_its_token(url: str) -> None:
    assert RemoteAddress(url).server == "sc://host:1"


def test_the_engine_of_the_home_is_addressed_by_ip_and_bypasses_proxies() -> None:
    builder = builder_for(LOCAL)
    assert isinstance(builder, LocalChannelBuilder)
    assert ("grpc.enable_http_proxy", 0) in builder._channel_options


def test_a_user_id_in_the_url_of_a_server_is_kept() -> None:
    assert builder_for(RemoteAddress("sc://host:1/;user_id=me")).userId == "me"


def test_a_lost_local_engine_is_not_retried_and_a_remote_one_only_for_seconds() -> None:
    assert not policy_for(LOCAL).can_retry(Unavailable())
    policy = policy_for(RemoteAddress("sc://host"))
    assert isinstance(policy, RemotePolicy)
    waits, state = [], policy.to_state()
    while (wait := state.next_attempt()) is not None:
        waits.append(wait)
    assert 5_000 < sum(waits) < 30_000


@pytest.mark.timeout(20)
def test_a_heartbeat_without_a_listener_is_not_answered() -> None:
    heartbeat = Heartbeat(LocalChannelBuilder(1, "t"))
    try:
        beat = heartbeat.send(seconds=5)
        assert not beat.answered()
        assert beat.over()
    finally:
        heartbeat.close()
