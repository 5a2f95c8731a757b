"""One folder per question: a README, the script that answers it, and its records."""
