"""Everything that speaks Tinker: server, chat tokens, rollouts, datums, run directories."""
