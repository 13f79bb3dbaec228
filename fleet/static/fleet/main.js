// What every page runs, in this order: times and frame first, then what moves.
import { startCharts } from "./charts.js";
import { startLinks } from "./links.js";
import { startHeat } from "./heat.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { startShell } from "./shell.js";
import { startTimes } from "./time.js";

startShell();
startTimes();
startKeys();
startHeat();
startCharts();
startLive();
startLinks();
