"""The far side of farcell: what runs on the machine where the code runs."""
