# A storage account whose container tells a Storage Queue of every change, through Event Grid, and a managed identity that may read
# both: what a volume of volstream needs at Azure.
#
#   terraform apply -var subscription=... -var resource_group=my-group -var account=myfiles -var container=my-files
#
# With make_account=false for an account and a container that exist. The managed identity belongs to the machine that runs volstream:
# assign it there, or set `issuer` and `subject` for a pod of Kubernetes with workload identity.

terraform {
  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = ">= 4.9"
    }
  }
}

variable "subscription" {
  type = string
}

variable "resource_group" {
  description = "That exists."
  type        = string
}

variable "account" {
  type = string
}

variable "container" {
  type = string
}

variable "make_account" {
  type    = bool
  default = true
}

variable "hierarchical" {
  description = "A new account has a hierarchical namespace: its volumes are at abfss://CONTAINER@ACCOUNT.dfs.core.windows.net."
  type        = bool
  default     = false
}

variable "prefix" {
  description = "What the names of the volume's blobs begin with, such as incoming/; empty for the whole container."
  type        = string
  default     = ""
}

variable "writes" {
  description = "Jobs write files to the container."
  type        = bool
  default     = false
}

variable "issuer" {
  description = "OIDC issuer of a cluster of Kubernetes; null: volstream runs on a machine."
  type        = string
  default     = null
}

variable "subject" {
  description = "Of its pods, such as system:serviceaccount:volstream:volstream."
  type        = string
  default     = null
}

provider "azurerm" {
  subscription_id = var.subscription
  features {}
}

data "azurerm_resource_group" "this" {
  name = var.resource_group
}

resource "azurerm_storage_account" "files" {
  count                           = var.make_account ? 1 : 0
  name                            = var.account
  resource_group_name             = var.resource_group
  location                        = data.azurerm_resource_group.this.location
  account_tier                    = "Standard"
  account_replication_type        = "ZRS"
  is_hns_enabled                  = var.hierarchical
  allow_nested_items_to_be_public = false
  min_tls_version                 = "TLS1_2"
}

locals {
  account   = "${data.azurerm_resource_group.this.id}/providers/Microsoft.Storage/storageAccounts/${var.account}"
  container = "${local.account}/blobServices/default/containers/${var.container}"
  path      = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs:path"
  listed    = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs:prefix"
  read      = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read"
}

resource "azurerm_storage_container" "files" {
  count              = var.make_account ? 1 : 0
  name               = var.container
  storage_account_id = azurerm_storage_account.files[0].id
}

# Events

resource "azurerm_storage_queue" "events" {
  name                 = "volstream"
  storage_account_name = var.account
  depends_on           = [azurerm_storage_account.files]
}

resource "azurerm_eventgrid_system_topic" "events" {
  name                   = "volstream-${var.account}"
  resource_group_name    = var.resource_group
  location               = data.azurerm_resource_group.this.location
  source_arm_resource_id = local.account
  topic_type             = "Microsoft.Storage.StorageAccounts"
  depends_on             = [azurerm_storage_account.files]
}

resource "azurerm_eventgrid_system_topic_event_subscription" "events" {
  name                = "volstream"
  system_topic        = azurerm_eventgrid_system_topic.events.name
  resource_group_name = var.resource_group
  included_event_types = [
    "Microsoft.Storage.BlobCreated",
    "Microsoft.Storage.BlobDeleted",
    "Microsoft.Storage.BlobRenamed",
    "Microsoft.Storage.DirectoryCreated",
    "Microsoft.Storage.DirectoryDeleted",
    "Microsoft.Storage.DirectoryRenamed",
  ]
  storage_queue_endpoint {
    storage_account_id = local.account
    queue_name         = azurerm_storage_queue.events.name
    # What is older is lost to events, and found by the next full listing.
    queue_message_time_to_live_in_seconds = 1209600
  }
  # Not by prefix: a folder around it may be moved.
  subject_filter {
    subject_begins_with = "/blobServices/default/containers/${var.container}/"
  }
}

# The identity, with what `volstream describe connection` says that it needs

resource "azurerm_user_assigned_identity" "volstream" {
  name                = "volstream"
  resource_group_name = var.resource_group
  location            = data.azurerm_resource_group.this.location
}

resource "azurerm_federated_identity_credential" "pods" {
  count               = var.issuer == null ? 0 : 1
  name                = "volstream"
  resource_group_name = var.resource_group
  parent_id           = azurerm_user_assigned_identity.volstream.id
  issuer              = var.issuer
  subject             = var.subject
  audience            = ["api://AzureADTokenExchange"]
}

# Signs what tasks get.
resource "azurerm_role_assignment" "signs" {
  scope                = local.account
  role_definition_name = "Storage Blob Delegator"
  principal_id         = azurerm_user_assigned_identity.volstream.principal_id
  depends_on           = [azurerm_storage_account.files]
}

resource "azurerm_role_assignment" "reads" {
  scope                = local.container
  role_definition_name = "Storage Blob Data Reader"
  principal_id         = azurerm_user_assigned_identity.volstream.principal_id
  condition_version    = var.prefix == "" ? null : "2.0"
  condition = var.prefix == "" ? null : join(" AND ", [
    "((!(ActionMatches{'${local.read}'} AND NOT SubOperationMatches{'Blob.List'})) OR (@Resource[${local.path}] StringStartsWith '${var.prefix}'))",
    "((!(ActionMatches{'${local.read}'} AND SubOperationMatches{'Blob.List'})) OR (@Request[${local.listed}] StringStartsWith '${var.prefix}'))",
  ])
  depends_on = [azurerm_storage_container.files]
}

resource "azurerm_role_assignment" "writes" {
  count                = var.writes ? 1 : 0
  scope                = local.container
  role_definition_name = "Storage Blob Data Contributor"
  principal_id         = azurerm_user_assigned_identity.volstream.principal_id
  depends_on           = [azurerm_storage_container.files]
}

resource "azurerm_role_assignment" "receives" {
  scope                = "${local.account}/queueServices/default/queues/${azurerm_storage_queue.events.name}"
  role_definition_name = "Storage Queue Data Contributor"
  principal_id         = azurerm_user_assigned_identity.volstream.principal_id
}

output "role_arn" {
  description = "For `volstream create-connection --type az --role-arn`."
  value       = azurerm_user_assigned_identity.volstream.client_id
}

output "queue_name" {
  description = "For `volstream create-volume --queue-type storagequeue --queue-name`."
  value       = "https://${var.account}.queue.core.windows.net/${azurerm_storage_queue.events.name}"
}
