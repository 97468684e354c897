"""The policies to paste at a provider: exactly what the volumes of a connection need."""

from __future__ import annotations

from typing import Any

import pytest

from volstream.files.providers.alibaba import policies as alibaba
from volstream.files.providers.aws import policies as aws
from volstream.files.providers.azure import policies as azure
from volstream.files.providers.base import RequiredAccess
from volstream.files.providers.google import policies as google

AWS_ROLE = "arn:aws-cn:iam::123456789012:role/r"
GOOGLE_ROLE = "r@my-project.iam.gserviceaccount.com"
AZURE_ROLE = "00000000-0000-0000-0000-000000000001"
OSS_ROLE = "acs:ram::1234567890:role/r"


def test_a_role_trusts_only_callers_that_present_the_external_id() -> None:
    (s3,) = aws.trust_policy("x1", AWS_ROLE)["Statement"]
    (oss,) = alibaba.trust_policy("x1", None)["Statement"]
    assert s3["Principal"] == {"AWS": "arn:aws-cn:iam::ACCOUNT_ID:root"}
    assert oss["Principal"] == {"RAM": ["acs:ram::ACCOUNT_ID:root"]}
    assert s3["Condition"] == oss["Condition"] == {"StringEquals": {"sts:ExternalId": "x1"}}


def test_an_s3_volume_may_list_its_prefix_read_below_it_and_receive_from_its_queue() -> None:
    needs = [RequiredAccess("b", "in/", "q"), RequiredAccess("b", "in/more/", "q"), RequiredAccess("b", "a*b/")]
    listing, reading, queue, objects, messages = aws.permission_policy(needs, "cn-north-1", AWS_ROLE)["Statement"]
    assert (listing["Action"], listing["Resource"]) == (["s3:ListBucket"], ["arn:aws-cn:s3:::b"])
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["a${*}b/*", "in/*"]}}
    assert reading["Action"] == ["s3:GetObject", "s3:GetObjectVersion"]
    assert reading["Resource"] == ["arn:aws-cn:s3:::b/a${*}b/*", "arn:aws-cn:s3:::b/in/*"]
    assert queue["Resource"] == ["arn:aws-cn:sqs:cn-north-1:123456789012:q"]
    # Of what KMS encrypts, the same and no more.
    assert objects["Action"] == messages["Action"] == ["kms:Decrypt"]
    contexts = [one["Condition"]["StringLike"] for one in (objects, messages)]
    assert contexts == [
        {"kms:EncryptionContext:aws:s3:arn": [*listing["Resource"], *reading["Resource"]]},
        {"kms:EncryptionContext:aws:sqs:arn": queue["Resource"]},
    ]
    assert {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility"} < {*queue["Action"]}


def test_the_url_of_a_queue_determines_its_arn() -> None:
    url = "https://sqs.eu-west-1.amazonaws.com/210987654321/q"
    (_, _, queue, *_) = aws.permission_policy([RequiredAccess("b", "", url)], None, None)["Statement"]
    assert queue["Resource"] == ["arn:aws:sqs:eu-west-1:210987654321:q"]
    url = "https://1234567890.mns.cn-beijing-internal.aliyuncs.com/queues/q"
    (_, _, queue, _) = alibaba.permission_policy([RequiredAccess("b", "", url)], None, None)["Statement"]
    assert queue["Resource"] == ["acs:mns:cn-beijing:1234567890:/queues/q"]


def test_a_whole_bucket_and_a_connection_without_volumes_have_no_prefix() -> None:
    for needs, bucket in (([RequiredAccess("b", ""), RequiredAccess("b", "in/")], "b"), ([], "BUCKET")):
        listing, reading, _ = aws.permission_policy(needs, None, None)["Statement"]
        assert "Condition" not in listing
        assert reading["Resource"] == [f"arn:aws:s3:::{bucket}/*"]
        listing, reading = alibaba.permission_policy(needs, None, None)["Statement"]
        assert "Condition" not in listing
        assert reading["Resource"] == [f"acs:oss:*:*:{bucket}/*"]


def test_an_oss_volume_may_list_its_prefix_read_below_it_and_receive_from_its_queue() -> None:
    needs = [RequiredAccess("b", "in/", "q")]
    listing, reading, queue, messages = alibaba.permission_policy(needs, "cn-hangzhou", OSS_ROLE)["Statement"]
    assert (listing["Action"], listing["Resource"]) == (["oss:ListObjects"], ["acs:oss:*:1234567890:b"])
    assert listing["Condition"] == {"StringLike": {"oss:Prefix": ["in/*"]}}
    assert (reading["Action"], reading["Resource"]) == (["oss:GetObject"], ["acs:oss:*:1234567890:b/in/*"])
    assert queue["Resource"] == ["acs:mns:cn-hangzhou:1234567890:/queues/q"]
    assert messages["Resource"] == ["acs:mns:cn-hangzhou:1234567890:/queues/q/messages"]


@pytest.mark.parametrize(
    ("region", "partition"), [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov"), ("eu-west-1", "aws"), (None, "aws")]
)
def test_without_a_role_the_region_determines_the_partition(region: str | None, partition: str) -> None:
    listing, *_ = aws.permission_policy([RequiredAccess("b", "", "q")], region, None)["Statement"]
    assert listing["Resource"] == [f"arn:{partition}:s3:::b"]


@pytest.mark.parametrize(("provider", "resource"), [("s3", "arn:aws:s3:::b/out/*"), ("oss", "acs:oss:*:*:b/out/*")])
def test_outputs_may_be_written_where_jobs_write_them_and_nowhere_else(provider: str, resource: str) -> None:
    needs = [RequiredAccess("b", "in/"), RequiredAccess("b", "out/", writes=True)]
    policies = {"s3": aws, "oss": alibaba}[provider]
    statements = policies.permission_policy(needs, None, None)["Statement"]
    [writing] = [one for one in statements if f"{provider}:PutObject" in one["Action"]]
    assert writing["Resource"] == [resource]
    assert f"{provider}:DeleteObject" in writing["Action"]


def test_a_service_account_gets_least_roles_on_bucket_and_subscription() -> None:
    needs = [RequiredAccess("b", 'in "x"/', "files"), RequiredAccess("b", "out/", writes=True)]
    below = "projects/_/buckets/b/objects/"
    bindings = google.permission_policy(needs, None, GOOGLE_ROLE)["bindings"]
    assert all(one["members"] == [f"serviceAccount:{GOOGLE_ROLE}"] for one in bindings)
    assert [(one["resource"], one["role"], one.get("condition", {}).get("expression")) for one in bindings] == [
        ("gs://b", "roles/storage.legacyBucketReader", None),
        (
            "gs://b",
            "roles/storage.legacyObjectReader",
            f'resource.name.startsWith("{below}in \\"x\\"/") || resource.name.startsWith("{below}out/")',
        ),
        ("gs://b", "roles/storage.objectUser", f'resource.name.startsWith("{below}out/")'),
        ("projects/my-project/subscriptions/files", "roles/pubsub.subscriber", None),
        ("projects/my-project/subscriptions/files", "roles/pubsub.viewer", None),
    ]
    (trust,) = google.trust_policy("x1", GOOGLE_ROLE)["bindings"]
    assert trust == {
        "resource": GOOGLE_ROLE,
        "role": "roles/iam.serviceAccountTokenCreator",
        "members": ["serviceAccount:ACCOUNT_ID"],
    }
    full = "projects/p/subscriptions/s"
    for queue in (full, f"http://127.0.0.1:8085/{full}"):
        assert google.permission_policy([RequiredAccess("b", "", queue)], None, None)["bindings"][-1]["resource"] == full


def test_a_managed_identity_gets_least_roles_on_container_and_queue() -> None:
    needs = [RequiredAccess("con", "it's/", "files"), RequiredAccess("out", "", writes=True)]
    assignments = azure.permission_policy(needs, None, AZURE_ROLE)["roleAssignments"]
    assert all(one["assignee"] == AZURE_ROLE for one in assignments)
    assert [(one["scope"].rpartition("storageAccounts/")[2], one["role"]) for one in assignments] == [
        ("ACCOUNT", "Storage Blob Delegator"),
        ("ACCOUNT/blobServices/default/containers/con", "Storage Blob Data Reader"),
        ("ACCOUNT/blobServices/default/containers/out", "Storage Blob Data Reader"),
        ("ACCOUNT/blobServices/default/containers/out", "Storage Blob Data Contributor"),
        ("ACCOUNT/queueServices/default/queues/files", "Storage Queue Data Contributor"),
    ]
    assert [one["condition"].count("StringStartsWith 'it''s/'") for one in assignments if "condition" in one] == [2]
    url = "https://other.queue.core.windows.net/files"
    last = azure.permission_policy([RequiredAccess("con", "", url)], None, None)["roleAssignments"][-1]
    assert last["scope"].endswith("storageAccounts/other/queueServices/default/queues/files")


@pytest.mark.parametrize(
    ("policies", "name", "wrong"),
    [(google, GOOGLE_ROLE, "r@example.com"), (azure, AZURE_ROLE, "volstream"), (google, GOOGLE_ROLE, AWS_ROLE)],
)
def test_a_role_has_a_name_of_its_provider(policies: Any, name: str, wrong: str) -> None:
    assert policies.is_role(name, None)
    assert not policies.is_role(wrong, None)
