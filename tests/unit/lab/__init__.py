"""Tests of what notebooks need."""
