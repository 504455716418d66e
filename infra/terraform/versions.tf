# An AWS account as infra/kubernetes/overlays/aws wants it. Never applied: README.md says what has been checked.
terraform {
  # OpenTofu from the same version on. Earlier ones know no write-only arguments, and would keep passwords in the state.
  required_version = ">= 1.11"

  # For a team, the state in a bucket of its own, made beforehand and versioned: `tofu init -backend-config=bucket=BUCKET
  # -backend-config=region=REGION`, once this is no comment any more. Each environment has its own key.
  # backend "s3" {
  #   key          = "posgap/terraform.tfstate"
  #   encrypt      = true
  #   use_lockfile = true
  # }

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.0"
    }
    http = {
      source  = "hashicorp/http"
      version = "~> 3.5"
    }
    random = {
      source  = "hashicorp/random"
      version = "~> 3.7"
    }
  }
}

provider "aws" {
  region = var.region

  default_tags {
    tags = { project = var.cluster }
  }
}

data "aws_caller_identity" "here" {}

locals {
  account = data.aws_caller_identity.here.account_id
  bucket  = coalesce(var.bucket, "${var.cluster}-${local.account}")
}
