# Roles of service accounts, which begin with the cluster's name: an account may have several clusters. What the first three may do in the bucket is in infra/s3/; nothing is written twice.
locals {
  accounts = {
    posgap-data      = ["posgap:posgap-pipeline", "posgap:posgap-train"]
    posgap-mlflow    = ["posgap:posgap-mlflow"]
    posgap-backup    = ["posgap:posgap-backup"]
    posgap-secrets   = ["posgap:posgap-secrets"]
    posgap-karpenter = ["kube-system:karpenter"]
    posgap-volumes   = ["kube-system:ebs-csi-controller-sa"]
  }
}

resource "aws_iam_role" "account" {
  for_each = local.accounts
  name     = replace(each.key, "/^posgap/", var.cluster)

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Federated = aws_iam_openid_connect_provider.cluster.arn }
      Action    = "sts:AssumeRoleWithWebIdentity"
      Condition = {
        StringEquals = {
          "${local.issuer}:aud" = "sts.amazonaws.com"
          "${local.issuer}:sub" = [for account in each.value : "system:serviceaccount:${account}"]
        }
      }
    }]
  })
}

resource "aws_iam_role_policy" "bucket" {
  for_each = toset(["posgap-data", "posgap-mlflow", "posgap-backup"])
  name     = "s3"
  role     = aws_iam_role.account[each.key].name
  policy   = replace(file("${path.module}/../s3/${each.key}.json"), "BUCKET", aws_s3_bucket.main.id)
}

resource "aws_iam_role_policy" "secrets" {
  name = "secrets"
  role = aws_iam_role.account["posgap-secrets"].name

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["secretsmanager:GetSecretValue", "secretsmanager:DescribeSecret"]
      Resource = [for each in aws_secretsmanager_secret.all : each.arn]
    }]
  })
}

resource "aws_iam_role_policy_attachment" "volumes" {
  role       = aws_iam_role.account["posgap-volumes"].name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonEBSCSIDriverPolicy"
}
