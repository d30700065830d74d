"""What a set of episodes shows: statistics, tables, pictures and a page to browse. Reads files, needs no server."""
