# What `cuesqueue setup aws s3://BUCKET/PREFIX --queue QUEUE` makes: a queue with its dead-letter queue, to which the
# bucket alone may send, and the bucket's notifications of new objects. The provider's region is that of the bucket.
#
#   terraform apply -var bucket=landing -var prefix=orders/ -var queue=cuesqueue-landing-orders
#
# Unlike the command, it replaces all other notifications of the bucket: where there are some, add the block `queue` of
# `new_objects` to them instead. It was never applied; a test compares it with what the command makes.

terraform {
  required_version = ">= 1.3"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "bucket" {
  type        = string
  description = "The bucket that has the objects; it exists."
}

variable "prefix" {
  type        = string
  default     = ""
  description = "The names of the objects that are announced begin so, such as orders/."
}

variable "queue" {
  type        = string
  description = "The name of the queue; that of the dead-letter queue is QUEUE-dead."
}

data "aws_caller_identity" "current" {}

data "aws_s3_bucket" "bucket" {
  bucket = var.bucket
}

resource "aws_sqs_queue" "dead" {
  name                      = "${var.queue}-dead"
  message_retention_seconds = 1209600 # 14 days, the maximum: a pipeline may stand still for a while
}

resource "aws_sqs_queue" "queue" {
  name                      = var.queue
  message_retention_seconds = 1209600
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    maxReceiveCount     = 50 # restarts of a pipeline count as receives of every message in flight
  })
}

resource "aws_sqs_queue_policy" "bucket_may_send" {
  queue_url = aws_sqs_queue.queue.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "cuesqueue-${replace(var.bucket, ".", "-")}"
      Effect    = "Allow"
      Principal = { Service = "s3.amazonaws.com" }
      Action    = "sqs:SendMessage"
      Resource  = aws_sqs_queue.queue.arn
      Condition = {
        ArnEquals    = { "aws:SourceArn" = data.aws_s3_bucket.bucket.arn }
        StringEquals = { "aws:SourceAccount" = data.aws_caller_identity.current.account_id }
      }
    }]
  })
}

resource "aws_s3_bucket_notification" "new_objects" {
  bucket = var.bucket
  queue {
    id            = var.queue
    queue_arn     = aws_sqs_queue.queue.arn
    events        = ["s3:ObjectCreated:*"]
    filter_prefix = var.prefix
  }
  depends_on = [aws_sqs_queue_policy.bucket_may_send] # S3 tests at once whether it may send
}

output "reader_options" {
  description = "Options for spark.readStream.format(\"cuesqueue\")."
  value = {
    queueUrl        = aws_sqs_queue.queue.url
    allowedPrefixes = "s3://${var.bucket}/${var.prefix}"
    "aws.region"    = split(":", aws_sqs_queue.queue.arn)[3]
  }
}
