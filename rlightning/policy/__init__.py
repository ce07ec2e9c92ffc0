"""What learns and acts, alone (``base_policy``) and in a group (``policy_group``)."""
