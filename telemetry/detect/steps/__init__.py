"""How steps spend their time: whose work takes longer, who is waited for."""
