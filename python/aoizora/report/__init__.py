"""What people read: tables and progress for the terminal."""
