# EKS, with an OIDC provider for the roles of service accounts, and network rules that are enforced.
resource "aws_iam_role" "cluster" {
  name = "${var.cluster}-cluster"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "eks.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"
}

resource "aws_eks_cluster" "main" {
  name                      = var.cluster
  version                   = var.kubernetes_version
  role_arn                  = aws_iam_role.cluster.arn
  enabled_cluster_log_types = ["audit", "authenticator"]
  deletion_protection       = true

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  vpc_config {
    subnet_ids              = [for each in aws_subnet.private : each.id]
    endpoint_private_access = true
    endpoint_public_access  = true
    public_access_cidrs     = var.administrators_from
  }

  depends_on = [aws_iam_role_policy_attachment.cluster]
}

locals {
  node_security_group = aws_eks_cluster.main.vpc_config[0].cluster_security_group_id
  issuer              = trimprefix(aws_eks_cluster.main.identity[0].oidc[0].issuer, "https://")
}

# Karpenter finds the security group of its nodes by this tag.
resource "aws_ec2_tag" "discovery" {
  resource_id = local.node_security_group
  key         = "karpenter.sh/discovery"
  value       = var.cluster
}

resource "aws_iam_openid_connect_provider" "cluster" {
  url            = aws_eks_cluster.main.identity[0].oidc[0].issuer
  client_id_list = ["sts.amazonaws.com"]
}

# Without enableNetworkPolicy the rules of infra/kubernetes are accepted, and nothing enforces them.
resource "aws_eks_addon" "network" {
  cluster_name         = aws_eks_cluster.main.name
  addon_name           = "vpc-cni"
  configuration_values = jsonencode({ enableNetworkPolicy = "true" })
}

resource "aws_eks_addon" "proxy" {
  cluster_name = aws_eks_cluster.main.name
  addon_name   = "kube-proxy"
}

# These two run as pods, and wait for a node.
resource "aws_eks_addon" "dns" {
  cluster_name = aws_eks_cluster.main.name
  addon_name   = "coredns"
  depends_on   = [aws_eks_node_group.system]
}

# Kubeflow Pipelines wants volumes for its own database.
resource "aws_eks_addon" "volumes" {
  cluster_name             = aws_eks_cluster.main.name
  addon_name               = "aws-ebs-csi-driver"
  service_account_role_arn = aws_iam_role.account["posgap-volumes"].arn
  configuration_values     = jsonencode({ defaultStorageClass = { enabled = true } })
  depends_on               = [aws_eks_node_group.system]
}
