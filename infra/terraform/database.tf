# MLflow's PostgreSQL, with an empty database `mlflow`.
resource "aws_db_subnet_group" "mlflow" {
  name       = "${var.cluster}-mlflow"
  subnet_ids = [for each in aws_subnet.private : each.id]
}

resource "aws_security_group" "database" {
  name   = "${var.cluster}-database"
  vpc_id = aws_vpc.main.id
}

resource "aws_vpc_security_group_ingress_rule" "database" {
  security_group_id            = aws_security_group.database.id
  referenced_security_group_id = local.node_security_group
  ip_protocol                  = "tcp"
  from_port                    = 5432
  to_port                      = 5432
}

resource "aws_db_parameter_group" "mlflow" {
  name   = "${var.cluster}-mlflow"
  family = "postgres17"

  parameter {
    name  = "rds.force_ssl"
    value = "1"
  }
}

resource "aws_db_instance" "mlflow" {
  identifier                = "${var.cluster}-mlflow"
  engine                    = "postgres"
  engine_version            = "17"
  instance_class            = var.database_class
  multi_az                  = var.database_standby
  storage_type              = "gp3"
  allocated_storage         = 20
  max_allocated_storage     = 200
  storage_encrypted         = true
  db_name                   = "mlflow"
  username                  = "mlflow"
  password_wo               = jsondecode(ephemeral.aws_secretsmanager_secret_version.database.secret_string).password
  password_wo_version       = aws_secretsmanager_secret_version.made["mlflow-db"].secret_string_wo_version
  db_subnet_group_name      = aws_db_subnet_group.mlflow.name
  vpc_security_group_ids    = [aws_security_group.database.id]
  parameter_group_name      = aws_db_parameter_group.mlflow.name
  backup_retention_period   = 14
  copy_tags_to_snapshot     = true
  deletion_protection       = true
  final_snapshot_identifier = "${var.cluster}-mlflow-last"
}
