echo alone
