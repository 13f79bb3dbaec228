// Entry point of every page. The order matters: times and frame first, then live parts.
import { startCharts } from "./charts.js";
import { startLinks } from "./links.js";
import { startHeat } from "./heat.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startSearch } from "./search.js";
import { startShell } from "./shell.js";
import { startTimeMachine } from "./time-machine.js";
import { startTimes } from "./time.js";

startShell();
startTimes();
startKeys();
startSearch();
startHeat();
startCharts();
startLive();
startLinks();
startTimeMachine();
