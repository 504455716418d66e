variable "region" {
  description = "AWS region; look where the GPUs of the node pools are to be had"
  type        = string
  default     = "us-east-1"
}

variable "cluster" {
  description = "name of the EKS cluster, and the beginning of all other names: each environment in an account has its own"
  type        = string
  default     = "posgap"

  validation {
    # The overlay replaces what stands behind the hyphen of KarpenterNodeRole-CLUSTER.
    condition     = can(regex("^[a-z][a-z0-9]{1,30}$", var.cluster))
    error_message = "Small letters and digits, 2 to 31 of them, a letter first, and no hyphen."
  }
}

variable "kubernetes_version" {
  description = "of the EKS cluster; NODE_IMAGE in settings.env is an image for it"
  type        = string
  default     = "1.34"
}

variable "bucket" {
  description = "S3 bucket of data, models and artifacts; empty: CLUSTER-ACCOUNT"
  type        = string
  default     = ""
}

variable "vpc_cidr" {
  description = "addresses of the VPC, at least a /18"
  type        = string
  default     = "10.0.0.0/16"
}

variable "administrators_from" {
  description = "address ranges from which the cluster's API may be called, like [\"203.0.113.7/32\"]"
  type        = list(string)
}

variable "database_class" {
  description = "RDS instance class of MLflow's database"
  type        = string
  default     = "db.t4g.medium"
}

variable "database_standby" {
  description = "whether a second instance in another zone takes over where the first fails; twice the price"
  type        = bool
  default     = false
}

variable "node_image" {
  description = "release of the EKS image for Karpenter's nodes"
  type        = string
  default     = "al2023@v20260828"
}

variable "karpenter_version" {
  description = "whose published template the controller's rights are taken from"
  type        = string
  default     = "1.14.1"
}
