"""Incidents drawn at random - fleets, lengths, seats, pools, scrape intervals, names, onsets, severities - to hold the diagnosis against what nobody tuned it to."""
