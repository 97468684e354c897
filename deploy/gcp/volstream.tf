# A bucket that tells a Pub/Sub subscription of every change, a subscription for messages that fail too often, and a service account
# that may read both: what a volume of volstream needs at Google.
#
#   terraform apply -var project=my-project -var bucket=my-files -var principal=serviceAccount:volstream-host@my-project.iam.gserviceaccount.com
#
# With make_bucket=false for a bucket that exists; conditions on prefixes need its uniform bucket-level access. The account exists
# with the name that `volstream create-connection --role-arn` gets: volstream@PROJECT.iam.gserviceaccount.com.

terraform {
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0"
    }
  }
}

variable "project" {
  type = string
}

variable "bucket" {
  type = string
}

variable "make_bucket" {
  type    = bool
  default = true
}

variable "location" {
  type    = string
  default = "EU"
}

variable "prefix" {
  description = "What the names of the volume's objects begin with, such as incoming/; empty for the whole bucket."
  type        = string
  default     = ""
}

variable "outputs" {
  description = "What the names of files begin with that jobs write to the bucket, such as outputs/; null: they write none."
  type        = string
  default     = null
}

variable "principal" {
  description = "Under which volstream runs, and which may act as the account, such as serviceAccount:NAME@PROJECT.iam.gserviceaccount.com."
  type        = string
}

variable "signs_urls" {
  description = "Functions may make presigned URLs. Who may sign for an account can also get new tokens of it."
  type        = bool
  default     = false
}

provider "google" {
  project = var.project
}

locals {
  objects = "projects/_/buckets/${var.bucket}/objects/"
}

resource "google_storage_bucket" "files" {
  count                       = var.make_bucket ? 1 : 0
  name                        = var.bucket
  location                    = var.location
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
}

# Events

data "google_storage_project_service_account" "storage" {}

data "google_project" "this" {}

resource "google_pubsub_topic" "events" {
  name = "volstream"
}

resource "google_pubsub_topic" "dead" {
  name = "volstream-dead"
}

# Without a subscription a topic keeps nothing.
resource "google_pubsub_subscription" "dead" {
  name                       = "volstream-dead"
  topic                      = google_pubsub_topic.dead.id
  message_retention_duration = "2678400s"
  expiration_policy {
    ttl = ""
  }
}

resource "google_pubsub_subscription" "events" {
  name  = "volstream"
  topic = google_pubsub_topic.events.id
  # volstream extends what it has in hand by itself; after its sudden end it comes back this much later.
  ack_deadline_seconds = 120
  # What is older is lost to events, and found by the next full listing.
  message_retention_duration = "2678400s"
  # Else a subscription that nobody reads for a month is deleted.
  expiration_policy {
    ttl = ""
  }
  dead_letter_policy {
    dead_letter_topic = google_pubsub_topic.dead.id
    # Every end of a daemon counts once for what it had in hand.
    max_delivery_attempts = 20
  }
}

resource "google_pubsub_topic_iam_member" "storage_publishes" {
  topic  = google_pubsub_topic.events.id
  role   = "roles/pubsub.publisher"
  member = data.google_storage_project_service_account.storage.member
}

resource "google_storage_notification" "events" {
  bucket             = var.bucket
  topic              = google_pubsub_topic.events.id
  payload_format     = "NONE"
  object_name_prefix = var.prefix
  depends_on         = [google_storage_bucket.files, google_pubsub_topic_iam_member.storage_publishes]
}

# Pub/Sub itself moves messages to the other topic.
resource "google_pubsub_topic_iam_member" "pubsub_publishes" {
  topic  = google_pubsub_topic.dead.id
  role   = "roles/pubsub.publisher"
  member = "serviceAccount:service-${data.google_project.this.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
}

resource "google_pubsub_subscription_iam_member" "pubsub_moves" {
  subscription = google_pubsub_subscription.events.name
  role         = "roles/pubsub.subscriber"
  member       = "serviceAccount:service-${data.google_project.this.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
}

# The account, with what `volstream describe connection` says that it needs

resource "google_service_account" "volstream" {
  account_id = "volstream"
}

resource "google_service_account_iam_member" "trusts" {
  service_account_id = google_service_account.volstream.name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = var.principal
}

resource "google_service_account_iam_member" "signs" {
  count              = var.signs_urls ? 1 : 0
  service_account_id = google_service_account.volstream.name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = google_service_account.volstream.member
}

resource "google_storage_bucket_iam_member" "lists" {
  bucket     = var.bucket
  role       = "roles/storage.legacyBucketReader"
  member     = google_service_account.volstream.member
  depends_on = [google_storage_bucket.files]
}

resource "google_storage_bucket_iam_member" "reads" {
  bucket = var.bucket
  role   = "roles/storage.legacyObjectReader"
  member = google_service_account.volstream.member
  dynamic "condition" {
    for_each = var.prefix == "" ? [] : [var.prefix]
    content {
      title      = "volstream"
      expression = "resource.name.startsWith(\"${local.objects}${condition.value}\")"
    }
  }
  depends_on = [google_storage_bucket.files]
}

resource "google_storage_bucket_iam_member" "writes" {
  count  = var.outputs == null ? 0 : 1
  bucket = var.bucket
  role   = "roles/storage.objectUser"
  member = google_service_account.volstream.member
  condition {
    title      = "volstream"
    expression = "resource.name.startsWith(\"${local.objects}${var.outputs}\")"
  }
  depends_on = [google_storage_bucket.files]
}

resource "google_pubsub_subscription_iam_member" "receives" {
  for_each     = toset(["roles/pubsub.subscriber", "roles/pubsub.viewer"])
  subscription = google_pubsub_subscription.events.name
  role         = each.value
  member       = google_service_account.volstream.member
}

output "role_arn" {
  description = "For `volstream create-connection --type gs --role-arn`."
  value       = google_service_account.volstream.email
}

output "queue_name" {
  description = "For `volstream create-volume --queue-type pubsub --queue-name`."
  value       = google_pubsub_subscription.events.id
}
