output "settings" {
  description = "infra/kubernetes/overlays/aws/settings.env"

  value = <<-EOT
    CLUSTER=${var.cluster}
    ROLES=arn:aws:iam::${local.account}:role/${var.cluster}
    REGION=${var.region}
    VPC_CIDR=${var.vpc_cidr}
    BUCKET=${aws_s3_bucket.main.id}
    DB_HOST=${aws_db_instance.mlflow.address}
    DB_SECRET=${aws_secretsmanager_secret.all["mlflow-db"].name}
    AUTH_SECRET=${aws_secretsmanager_secret.all["mlflow-auth"].name}
    PIPELINE_SECRET=${aws_secretsmanager_secret.all["mlflow-pipeline"].name}
    PROMOTE_SECRET=${aws_secretsmanager_secret.all["mlflow-promote"].name}
    HUB_SECRET=${aws_secretsmanager_secret.all["hub"].name}
    NODE_IMAGE=${var.node_image}
  EOT
}

output "pipeline_root" {
  description = "for KFP's ConfigMap pipeline-install-config: defaultPipelineRoot"
  value       = "s3://${aws_s3_bucket.main.id}/kfp"
}

output "karpenter_role" {
  description = "for Karpenter's chart: serviceAccount.annotations.eks.amazonaws.com/role-arn"
  value       = aws_iam_role.account["posgap-karpenter"].arn
}
