"""The paper's tables and figures: what each shows, run here, and put beside the paper."""
