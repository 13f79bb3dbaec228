"""The node agent: reads neuron-monitor and sysfs, spools, and posts; standard library only."""

VERSION = "1"
