"""Where arriving rows come from: growing files, standard input, Kafka, Redis, and two of them joined."""
