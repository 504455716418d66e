# Two nodes for what must run before there are others: Karpenter, Kubeflow, Kueue. Karpenter starts the rest, as
# infra/kubernetes/overlays/aws/nodes says.
resource "aws_iam_role" "system" {
  name = "${var.cluster}-system"

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "system" {
  for_each   = toset(["AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly"])
  role       = aws_iam_role.system.name
  policy_arn = "arn:aws:iam::aws:policy/${each.key}"
}

resource "aws_launch_template" "system" {
  name_prefix = "${var.cluster}-system-"

  # One hop: the node reads its credentials, a pod cannot.
  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_type = "gp3"
      volume_size = 100
      encrypted   = true
    }
  }
}

resource "aws_eks_node_group" "system" {
  cluster_name    = aws_eks_cluster.main.name
  node_group_name = "system"
  node_role_arn   = aws_iam_role.system.arn
  subnet_ids      = [for each in aws_subnet.private : each.id]
  ami_type        = "AL2023_x86_64_STANDARD"
  instance_types  = ["m7i.xlarge"]

  launch_template {
    id      = aws_launch_template.system.id
    version = aws_launch_template.system.latest_version
  }

  scaling_config {
    desired_size = 2
    min_size     = 2
    max_size     = 3
  }

  depends_on = [aws_iam_role_policy_attachment.system, aws_eks_addon.network, aws_eks_addon.proxy]
}

# The rights of Karpenter, the role of its nodes and the queue of interruptions change with its version: they come from
# the template that its maintainers publish for each.
data "http" "karpenter" {
  url = join("/", [
    "https://raw.githubusercontent.com/aws/karpenter-provider-aws/v${var.karpenter_version}",
    "website/content/en/preview/getting-started/getting-started-with-karpenter/cloudformation.yaml",
  ])

  lifecycle {
    postcondition {
      condition     = self.status_code == 200
      error_message = "No template of Karpenter ${var.karpenter_version} was found; is it a released version?"
    }
  }
}

resource "aws_cloudformation_stack" "karpenter" {
  name          = "karpenter-${var.cluster}"
  template_body = data.http.karpenter.response_body
  parameters    = { ClusterName = var.cluster }
  capabilities  = ["CAPABILITY_NAMED_IAM"]
}

resource "aws_iam_role_policy_attachment" "karpenter" {
  # Some versions have more than one policy for the controller.
  for_each   = toset(flatten(regexall("ManagedPolicyName: !Sub \"([^$\"]+)-\\$\\{ClusterName\\}\"", data.http.karpenter.response_body)))
  role       = aws_iam_role.account["posgap-karpenter"].name
  policy_arn = "arn:aws:iam::${local.account}:policy/${each.key}-${var.cluster}"
  depends_on = [aws_cloudformation_stack.karpenter]
}

resource "aws_eks_access_entry" "karpenter" {
  cluster_name  = aws_eks_cluster.main.name
  principal_arn = "arn:aws:iam::${local.account}:role/KarpenterNodeRole-${var.cluster}"
  type          = "EC2_LINUX"
  depends_on    = [aws_cloudformation_stack.karpenter]
}
